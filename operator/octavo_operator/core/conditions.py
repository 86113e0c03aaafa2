"""Conditions as the API has them; a transition time moves only when the status does."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from octavo_operator.api.status import Condition

# The API's own limit on a condition's message.
MAX_MESSAGE_LENGTH: Final = 32768


def format_time(now: datetime) -> str:
    """Seconds and Z, as Kubernetes writes times; `now` is in UTC."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    previous: Sequence[Mapping[str, Any]], condition: Condition, *, generation: int, now: datetime
) -> dict[str, Any]:
    """`condition` for the API; keeps lastTransitionTime where the status is what it was."""
    before = next((entry for entry in previous if entry.get("type") == condition.type), None)
    unchanged = before is not None and before.get("status") == condition.status
    since = before.get("lastTransitionTime") if before is not None and unchanged else None
    rendered: dict[str, Any] = {
        "type": str(condition.type),
        "status": str(condition.status),
        "reason": condition.reason,
        "message": condition.message[:MAX_MESSAGE_LENGTH],
        "lastTransitionTime": since or format_time(now),
        "observedGeneration": generation,
    }
    if condition.next_action:
        rendered["nextAction"] = condition.next_action
    return rendered


def set_conditions(
    previous: Sequence[Mapping[str, Any]],
    conditions: Sequence[Condition],
    *,
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    return [
        set_condition(previous, condition, generation=generation, now=now)
        for condition in conditions
    ]
