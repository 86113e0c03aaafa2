import pytest

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason
from octavo_engine.core.stopping import decide_finish, decide_max_total_tokens


@pytest.mark.parametrize(
    ("token_id", "num_generated", "num_total", "min_tokens", "reason"),
    [
        pytest.param(5, 1, 11, 0, None, id="an ordinary token goes on"),
        pytest.param(2, 1, 11, 0, FinishReason.STOP, id="a stop token stops"),
        pytest.param(2, 1, 11, 2, None, id="a stop token before min_tokens goes on"),
        pytest.param(2, 2, 12, 2, FinishReason.STOP, id="a stop token as number min_tokens stops"),
        pytest.param(5, 10, 20, 0, FinishReason.LENGTH, id="the last allowed token"),
        pytest.param(2, 10, 20, 0, FinishReason.STOP, id="a stop token as the last is a stop"),
        pytest.param(2, 10, 20, 11, FinishReason.LENGTH, id="the length ends it before min_tokens"),
    ],
)
def test_a_sequence_ends_by(
    token_id: int,
    num_generated: int,
    num_total: int,
    min_tokens: int,
    reason: FinishReason | None,
) -> None:
    sampling = SamplingParams(
        max_tokens=10, min_tokens=min_tokens, stop_token_ids=frozenset({2, 3})
    )
    assert decide_finish(token_id, num_generated, num_total, 20, sampling) is reason


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "model_len", "capacity", "expected"),
    [
        pytest.param(10, 5, 100, 100, 15, id="max_tokens"),
        pytest.param(10, 500, 100, 400, 100, id="the context"),
        pytest.param(30, 500, 100, 32, 33, id="the cache, and one token that needs no room"),
    ],
)
def test_the_end_by_length_is_set_by(
    prompt: int, max_tokens: int, model_len: int, capacity: int, expected: int
) -> None:
    assert decide_max_total_tokens(prompt, max_tokens, model_len, capacity) == expected
