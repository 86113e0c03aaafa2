"""A start-up failure survives the way through a pod's termination message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_wire.failures import (
    MAX_MESSAGE_BYTES,
    Reason,
    StartupFailure,
    parse_startup_failure,
)


@given(st.sampled_from(Reason), st.text(max_size=200), st.text(max_size=200))
def test_what_is_written_is_read_back(reason: Reason, message: str, action: str) -> None:
    failure = StartupFailure(reason=reason, message=message, next_action=action)
    assert parse_startup_failure(failure.to_json()) == failure


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.sampled_from("aé\n😀"))
def test_a_long_message_is_cut_to_what_the_kubelet_keeps(long: int, other: int, char: str) -> None:
    failure = StartupFailure(
        reason=Reason.INTERNAL_ERROR, message=char * long, next_action=char * other
    )
    text = failure.to_json()
    assert len(text.encode()) <= MAX_MESSAGE_BYTES
    assert parse_startup_failure(text) is not None


@pytest.mark.parametrize("text", ["", "Killed", "{}", '{"reason": "Odd"}', "[]", "null"])
def test_other_peoples_messages_are_not_ours(text: str) -> None:
    assert parse_startup_failure(text) is None
