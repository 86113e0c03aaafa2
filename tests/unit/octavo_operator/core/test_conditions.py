from datetime import UTC, datetime

from octavo_operator.api.status import Condition, ConditionStatus, ConditionType
from octavo_operator.core.conditions import set_condition

EARLIER, NOW = "2026-11-01T10:00:00Z", datetime(2026, 11, 1, 12, 0, 5, 999, tzinfo=UTC)
BEFORE = [{"type": "Ready", "status": "False", "reason": "Old", "lastTransitionTime": EARLIER}]


def make(status: ConditionStatus, next_action: str = "") -> Condition:
    return Condition(
        type=ConditionType.READY,
        status=status,
        reason="New",
        message="text",
        next_action=next_action,
    )


def test_the_transition_time_stays_while_only_the_reason_changes() -> None:
    rendered = set_condition(BEFORE, make(ConditionStatus.FALSE), generation=3, now=NOW)
    assert rendered["lastTransitionTime"] == EARLIER
    assert (rendered["reason"], rendered["observedGeneration"]) == ("New", 3)


def test_the_transition_time_moves_with_the_status() -> None:
    rendered = set_condition(BEFORE, make(ConditionStatus.TRUE), generation=3, now=NOW)
    assert rendered["lastTransitionTime"] == "2026-11-01T12:00:05Z"


def test_the_next_action_is_there_only_when_there_is_one() -> None:
    with_one = set_condition([], make(ConditionStatus.FALSE, "Do."), generation=1, now=NOW)
    without = set_condition([with_one], make(ConditionStatus.TRUE), generation=1, now=NOW)
    assert with_one["nextAction"] == "Do."
    assert "nextAction" not in without
