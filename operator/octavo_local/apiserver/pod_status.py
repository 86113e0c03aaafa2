"""The READY, STATUS and RESTARTS that `kubectl get pods` shows, worked out of a pod's status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .clock import parse_timestamp
from .durations import human_duration
from .resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSummary:
    ready: str
    status: str
    restarts: str


def summarize(pod: Object, now: datetime) -> PodSummary:
    spec, status = pod["spec"], pod.get("status") or {}
    containers: list[Object] = status.get("containerStatuses") or []
    ready = sum(1 for one in containers if one.get("ready") and "running" in _state(one))
    restarts = sum(int(one.get("restartCount", 0)) for one in containers)
    text = str(restarts)
    ends = [
        one["lastState"]["terminated"].get("finishedAt")
        for one in containers
        if "terminated" in (one.get("lastState") or {})
    ]
    if restarts and any(ends):
        last = max(parse_timestamp(end) for end in ends if end)
        text = f"{restarts} ({human_duration((now - last).total_seconds())} ago)"
    return PodSummary(
        ready=f"{ready}/{len(spec.get('containers') or [])}",
        status=_status_text(pod),
        restarts=text,
    )


def _state(container: Object) -> dict[str, Any]:
    return container.get("state") or {}


def _status_text(pod: Object) -> str:
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    initializing = _initializing(pod)
    if initializing is not None:
        return initializing
    text = str(status.get("reason") or status.get("phase") or "Unknown")
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = _state(container)
        waiting = (state.get("waiting") or {}).get("reason")
        terminated = state.get("terminated")
        if waiting:
            text = str(waiting)
        elif terminated is not None:
            text = _termination_text(terminated)
        elif container.get("ready") and "running" in state:
            running = True
    if text == "Completed" and running:
        return "Running"
    return text


def _initializing(pod: Object) -> str | None:
    """`Init:1/2` and the like while init containers have not all succeeded."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    for index, container in enumerate(statuses):
        state = _state(container)
        terminated = state.get("terminated")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if terminated is not None:
            return f"Init:{_termination_text(terminated)}"
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{len(pod['spec'].get('initContainers') or [])}"
    return None


def _termination_text(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"
