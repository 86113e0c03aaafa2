"""Conditions: what holds of an InferenceService, why, and what to do where it is not well."""

from octavo_operator.api.status import Condition, ConditionStatus, ConditionType
from octavo_operator.core.checks import Refusal
from octavo_operator.core.diagnose import Diagnosis
from octavo_operator.core.render.deployment import Strategy
from octavo_operator.core.rollout import DEADLINE_EXCEEDED, Rollout

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE
_WAIT = "Wait; `kubectl describe` on the InferenceService and its pods shows how it goes."


def explain_refused(refusal: Refusal, rollout: Rollout) -> list[Condition]:
    """Conditions of a spec that is not acted upon; what ran before it goes on running."""
    ready = Condition(
        type=ConditionType.READY,
        status=FALSE,
        reason=refusal.reason,
        message=refusal.message,
        next_action=refusal.next_action,
    )
    if rollout.ready:
        ready = Condition(
            type=ConditionType.READY,
            status=TRUE,
            reason="ServingPreviousRevision",
            message=f"{_pods(rollout.ready)} of the previous spec go on serving; the current spec "
            f"is refused ({refusal.reason}): {refusal.message}",
            next_action=refusal.next_action,
        )
    return [
        ready,
        Condition(
            type=ConditionType.PROGRESSING,
            status=FALSE,
            reason="Refused",
            message="Nothing is changed as long as the spec is refused.",
            next_action=refusal.next_action,
        ),
        Condition(
            type=ConditionType.PLANNED,
            status=FALSE,
            reason=refusal.reason,
            message=refusal.message,
            next_action=refusal.next_action,
        ),
    ]


def explain_ready(rollout: Rollout, obstacle: Diagnosis | None) -> Condition:
    """Ready is True when pods answer requests; its reason says whether they are of this spec."""
    trouble = obstacle or rollout.diagnosis
    if rollout.desired == 0:
        return _ready(
            FALSE,
            "ScaledToZero",
            "spec.replicas is 0, so no pod serves.",
            "Set spec.replicas to 1 or more, for instance with `kubectl scale --replicas=1`.",
        )
    if rollout.updated_ready >= rollout.desired and obstacle is None:
        return _ready(TRUE, "Serving", f"{_of(rollout.updated_ready, rollout.desired)} ready.")
    why = f" {trouble.message}" if trouble is not None else ""
    action = trouble.next_action if trouble is not None else _WAIT
    if rollout.updated_ready:
        count = _of(rollout.updated_ready, rollout.desired)
        return _ready(TRUE, "Degraded", f"{count} ready.{why}", action)
    if rollout.ready:
        return _ready(
            TRUE,
            "ServingPreviousRevision",
            f"{_pods(rollout.ready)} of the previous spec go on serving until pods of the current "
            f"one are ready.{why}",
            action,
        )
    if trouble is not None:
        return _ready(FALSE, trouble.reason, trouble.message, action)
    return _ready(FALSE, "CreatingPods", "The engine pods are being created.", _WAIT)


def explain_progressing(
    rollout: Rollout, strategy: Strategy, *, rolling: bool, obstacle: Diagnosis | None
) -> Condition:
    """`rolling`: pods of another revision are, or just were, being replaced."""
    if obstacle is not None:
        return _progressing(FALSE, obstacle.reason, obstacle.message, obstacle.next_action)
    if rollout.complete:
        return _progressing(
            FALSE, "Complete", f"{_of(rollout.live, rollout.desired)} as specified."
        )
    trouble = rollout.diagnosis
    if rollout.deadline_exceeded:
        return _progressing(
            FALSE,
            DEADLINE_EXCEEDED,
            "The pods of the current spec did not become ready in time."
            + (f" {trouble.message}" if trouble is not None else ""),
            trouble.next_action if trouble is not None else "Look at the pods, then at their logs.",
        )
    count = _of(rollout.updated_ready, rollout.desired)
    action = trouble.next_action if trouble is not None else _WAIT
    if rolling:
        return _progressing(
            TRUE, strategy.reason, f"{strategy.message}; {count} of the current spec ready.", action
        )
    if rollout.live > rollout.desired:
        return _progressing(TRUE, "ScalingDown", f"{rollout.live - rollout.desired} to go.", _WAIT)
    return _progressing(TRUE, "StartingReplicas", f"{count} ready.", action)


def explain_planned(message: str) -> Condition:
    return Condition(type=ConditionType.PLANNED, status=TRUE, reason="Planned", message=message)


def _ready(status: ConditionStatus, reason: str, message: str, action: str = "") -> Condition:
    return Condition(
        type=ConditionType.READY, status=status, reason=reason, message=message, next_action=action
    )


def _progressing(status: ConditionStatus, reason: str, message: str, action: str = "") -> Condition:
    return Condition(
        type=ConditionType.PROGRESSING,
        status=status,
        reason=reason,
        message=message,
        next_action=action,
    )


def _pods(count: int) -> str:
    return f"{count} pod{'s' if count != 1 else ''}"


def _of(count: int, desired: int) -> str:
    return f"{count} of {desired} replica{'s' if desired != 1 else ''}"
