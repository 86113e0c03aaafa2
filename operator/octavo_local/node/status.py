"""What a pod's status says, from what its containers do. Pure: no clock, no process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_local.objects import Object, condition_of, format_time, merge_conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    signal: int = 0
    message: str = ""
    container_id: str = ""


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """One container as the kubelet sees it; `is_started`: its startup probe has succeeded."""

    name: str
    image: str
    state: State = Waiting(reason="ContainerCreating")
    last_state: Terminated | None = None
    restart_count: int = 0
    is_ready: bool = False
    is_started: bool = False
    container_id: str = ""


def make_pod_status(
    pod: Mapping[str, Any],
    init_records: Sequence[ContainerRecord],
    records: Sequence[ContainerRecord],
    *,
    pod_ip: str | None,
    host_ip: str,
    started_at: float,
    now: float,
) -> Object:
    """The status that the kubelet writes; keeps what the scheduler and others wrote into it."""
    before = pod.get("status") or {}
    phase = decide_phase(pod["spec"], init_records, records)
    is_initialized = all(_has_succeeded(record) for record in init_records)
    done = phase in ("Succeeded", "Failed")
    unready = [record.name for record in records if not record.is_ready]
    conditions: list[Object] = [
        {"type": "PodScheduled", "status": "True"},
        _condition(
            "Initialized",
            is_initialized,
            "ContainersNotInitialized",
            f"containers with incomplete status: {_listed(_unfinished(init_records))}",
        ),
    ]
    for kind in ("ContainersReady", "Ready"):
        is_ready = not unready and is_initialized and not done
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(
            phase, "ContainersNotReady"
        )
        message = "" if done else f"containers with unready status: {_listed(unready)}"
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
        closed = [gate for gate in gates if condition_of(pod, gate).get("status") != "True"]
        if kind == "Ready" and is_ready and closed:
            is_ready, reason = False, "ReadinessGatesNotReady"
            message = f'corresponding condition of pod readiness gate "{closed[0]}" is not "True".'
        conditions.append(_condition(kind, is_ready, reason, message))
    ours = {condition["type"] for condition in conditions}
    old = before.get("conditions") or []
    status: Object = {
        **{key: value for key, value in before.items() if key not in ("reason", "message")},
        "phase": phase,
        "conditions": [
            *merge_conditions(old, conditions, now),
            *(condition for condition in old if condition["type"] not in ours),
        ],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": before.get("startTime") or format_time(started_at),
        "containerStatuses": [_container_status(record) for record in records],
    }
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if init_records:
        status["initContainerStatuses"] = [_container_status(record) for record in init_records]
    return status


def decide_phase(
    spec: Mapping[str, Any],
    init_records: Sequence[ContainerRecord],
    records: Sequence[ContainerRecord],
) -> str:
    policy = spec.get("restartPolicy", "Always")
    for record in init_records:
        if not _has_succeeded(record):
            failed = isinstance(record.state, Terminated)
            return "Failed" if failed and policy == "Never" else "Pending"
    ends = [record.state for record in records if isinstance(record.state, Terminated)]
    if len(ends) == len(records) and policy != "Always":
        if all(end.exit_code == 0 for end in ends):
            return "Succeeded"
        if policy == "Never":
            return "Failed"
    never_ran = all(
        isinstance(record.state, Waiting) and record.last_state is None for record in records
    )
    return "Pending" if never_ran else "Running"


def _condition(kind: str, is_true: bool, reason: str, message: str) -> Object:
    if is_true:
        return {"type": kind, "status": "True"}
    return {
        "type": kind,
        "status": "False",
        "reason": reason,
        **({"message": message} if message else {}),
    }


def _has_succeeded(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.exit_code == 0


def _unfinished(records: Sequence[ContainerRecord]) -> list[str]:
    return [record.name for record in records if not _has_succeeded(record)]


def _listed(names: Sequence[str]) -> str:
    return f"[{' '.join(names)}]"


def _container_status(record: ContainerRecord) -> Object:
    return {
        "name": record.name,
        "image": record.image,
        "imageID": f"local://{record.image}" if record.container_id else "",
        "containerID": record.container_id,
        "ready": record.is_ready,
        "started": record.is_started,
        "restartCount": record.restart_count,
        "state": _state(record.state),
        "lastState": _state(record.last_state) if record.last_state else {},
    }


def _state(state: State) -> Object:
    match state:
        case Waiting(reason=reason, message=message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(started_at=started_at):
            return {"running": {"startedAt": format_time(started_at)}}
        case Terminated():
            return {
                "terminated": {
                    "exitCode": state.exit_code,
                    "reason": state.reason,
                    "startedAt": format_time(state.started_at),
                    "finishedAt": format_time(state.finished_at),
                    **({"signal": state.signal} if state.signal else {}),
                    **({"message": state.message} if state.message else {}),
                    **({"containerID": state.container_id} if state.container_id else {}),
                }
            }
