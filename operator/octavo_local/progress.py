"""What InferenceServices are doing, as lines for a person who waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo_local.objects import condition_of, name_of

# Reasons that pass by themselves; any other one that stays wants the user.
PASSING_REASONS: Final = frozenset(
    {
        "WaitingForOperator",
        "CreatingPods",
        "StartingPod",
        "LoadingModel",
        "ServingPreviousRevision",
        "WaitingForDeletion",
    }
)
_PHASES: Final = {
    "WaitingForOperator": "waiting for the operator",
    "CreatingPods": "creating its pods",
    "StartingPod": "starting the pod",
    "LoadingModel": "loading the model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at an InferenceService."""

    name: str
    is_ready: bool
    reason: str
    message: str
    next_action: str

    @property
    def is_passing(self) -> bool:
        return self.is_ready or self.reason in PASSING_REASONS

    @property
    def phase(self) -> str:
        if self.is_ready:
            return "Ready"
        return _PHASES.get(self.reason, self.reason)

    def line(self, elapsed_s: float) -> str:
        """The phase with the seconds since the start; a reason and what to do, where it is bad."""
        text = f"{elapsed_s:6.1f} s  {self.name}: {self.phase}"
        if self.is_passing:
            return text
        return f"{text}\n          {self.message}" + (
            f"\n          Next: {self.next_action}" if self.next_action else ""
        )


def progress_of(
    service: Mapping[str, Any], operator_pods: Sequence[Mapping[str, Any]] = ()
) -> Progress:
    """Read an InferenceService; a status of a former generation counts as none.

    While there is none, the operator's pods may know why.
    """
    condition = condition_of(service, "Ready")
    status = service.get("status") or {}
    is_current = status.get("observedGeneration") == service["metadata"].get("generation")
    if not condition or not is_current:
        broken = _broken_operator(operator_pods)
        if broken:
            return Progress(
                name=name_of(service),
                is_ready=False,
                reason="OperatorNotRunning",
                message=f"the operator does not run: {broken}",
                next_action="kubectl logs -n octavo-system deploy/octavo-operator --previous",
            )
        return Progress(
            name=name_of(service),
            is_ready=False,
            reason="WaitingForOperator",
            message="the operator has not looked at it yet",
            next_action="",
        )
    return Progress(
        name=name_of(service),
        is_ready=condition["status"] == "True",
        reason=str(condition.get("reason") or ""),
        message=str(condition.get("message") or ""),
        next_action=str(condition.get("nextAction") or ""),
    )


def _broken_operator(pods: Sequence[Mapping[str, Any]]) -> str:
    """Why no operator runs, when its pod waits for something that waiting does not mend."""
    for pod in pods:
        scheduled = condition_of(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return str(scheduled.get("message"))
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = container["state"].get("waiting") or {}
            if waiting.get("reason", "ContainerCreating") != "ContainerCreating":
                return f"{waiting['reason']}: {waiting.get('message', '')}"
    return ""
