"""Why engine pods are not ready, read from what the kubelet and the scheduler say of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from octavo_operator.core.observed import Manifest, condition_of, is_live, is_ready
from octavo_operator.core.wording import in_words_of_the_spec
from octavo_wire.failures import EXIT_CANNOT_START, parse_startup_failure
from octavo_wire.names import ENGINE_CONTAINER

_IMAGE_REASONS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_CONTAINER_REASONS: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_SIGKILL_EXIT: Final = 137
# Of a log that stands in for a termination message, its end says the most.
_LAST_LINES: Final = 5
_LAST_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why pods do not serve. `failing`: it will not become well by waiting."""

    reason: str
    message: str
    next_action: str
    failing: bool


def diagnose(pods: Sequence[Manifest], deployment: Manifest | None) -> Diagnosis | None:
    """The most telling reason why a live pod is not ready, or why pods are missing; else None."""
    found = [diagnose_pod(pod) for pod in pods if is_live(pod) and not is_ready(pod)]
    failing = [diagnosis for diagnosis in found if diagnosis.failing]
    if failing:
        return failing[0]
    if deployment is not None:
        refused = _diagnose_creation(deployment)
        if refused is not None:
            return refused
    return found[0] if found else None


def diagnose_pod(pod: Manifest) -> Diagnosis:
    """Why this pod, which is not ready, is not."""
    name = str(pod["metadata"]["name"])
    namespace = str(pod["metadata"]["namespace"])
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return Diagnosis(
            reason="Unschedulable",
            message=f"Pod {name} has no node: {scheduled.get('message') or 'no reason given'}",
            next_action="Add a node with what is missing, lower spec.resources, or free a node.",
            failing=True,
        )
    container = _engine_status(pod)
    state: dict[str, Any] = container.get("state") or {}
    waiting: dict[str, Any] = state.get("waiting") or {}
    logs = f"kubectl logs -n {namespace} {name} -c {ENGINE_CONTAINER}"
    if waiting.get("reason") in _IMAGE_REASONS:
        return _diagnose_image(name, container, waiting)
    if waiting.get("reason") in _CONTAINER_REASONS:
        return Diagnosis(
            reason=str(waiting["reason"]),
            message=f"Pod {name}: {waiting.get('message') or waiting['reason']}",
            next_action=f"Look at its events: kubectl describe pod -n {namespace} {name}",
            failing=True,
        )
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended:
        restarts = int(container.get("restartCount", 0))
        backing_off = waiting.get("reason") == "CrashLoopBackOff"
        found = _diagnose_exit(name, ended, restarts, backing_off=backing_off, logs=logs)
        if state.get("running") and parse_startup_failure(_last_object(_said(ended))) is None:
            return replace(found, message=f"{found.message} It runs again, and loads the model.")
        return found
    started = (state.get("running") or {}).get("startedAt")
    if started:
        return Diagnosis(
            reason="LoadingModel",
            message=f"Pod {name} is loading the model; its engine started at {started}.",
            next_action=f"Wait, or watch it: {logs} -f",
            failing=False,
        )
    return Diagnosis(
        reason="StartingPod",
        message=f"Pod {name} is being started"
        + (f" ({waiting['reason']})." if waiting.get("reason") else "."),
        next_action=f"Wait, or look at its events: kubectl describe pod -n {namespace} {name}",
        failing=False,
    )


def _engine_status(pod: Manifest) -> dict[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((dict(entry) for entry in statuses if entry.get("name") == ENGINE_CONTAINER), {})


def _diagnose_image(name: str, container: Manifest, waiting: Manifest) -> Diagnosis:
    image = container.get("image") or "its image"
    return Diagnosis(
        reason="ImagePullFailed",
        message=f"Pod {name} cannot get {image}: {waiting.get('message') or waiting['reason']}",
        next_action="Push or load the image where the node finds it, or start the operator with "
        "the registry that has it (--image-registry).",
        failing=True,
    )


def _diagnose_exit(
    name: str, ended: Manifest, restarts: int, *, backing_off: bool, logs: str
) -> Diagnosis:
    said = _said(ended)
    code = int(ended.get("exitCode", -1))
    times = f"; restarted {restarts} time{'s' if restarts != 1 else ''}" if restarts else ""
    failure = parse_startup_failure(_last_object(said))
    if failure is not None:
        return Diagnosis(
            reason=str(failure.reason),
            message=in_words_of_the_spec(failure.message),
            next_action=in_words_of_the_spec(failure.next_action),
            failing=True,
        )
    if ended.get("reason") == "OOMKilled":
        return Diagnosis(
            reason="OOMKilled",
            message=f"Pod {name} was killed for using more memory than its limit{times}.",
            next_action="Raise spec.resources.limits.memory, or lower "
            "spec.engine.gpuMemoryUtilization, maxNumSeqs or maxModelLen.",
            failing=True,
        )
    how = "was killed (exit code 137)" if code == _SIGKILL_EXIT else f"ended with exit code {code}"
    if code == EXIT_CANNOT_START:
        how = f"could not start (exit code {code})"
    last = _tail(said)
    return Diagnosis(
        reason="CrashLoopBackOff" if backing_off else "EngineExited",
        message=f"The engine of pod {name} {how}{times}."
        + (f" It last said: {last}" if last else ""),
        next_action=f"Read what it said: {logs} --previous",
        failing=True,
    )


def _said(ended: Manifest) -> str:
    return str(ended.get("message") or "")


def _last_object(text: str) -> str:
    """The last line of a message: a failure object may stand below a log that stood in for it."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:]


def _diagnose_creation(deployment: Manifest) -> Diagnosis | None:
    failure = condition_of(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    said = str(failure.get("message") or failure.get("reason") or "no reason given")
    if "exceeded quota" in said:
        return Diagnosis(
            reason="QuotaExceeded",
            message=f"A quota allows no more pods: {said}",
            next_action="Raise the ResourceQuota, or lower spec.replicas or spec.resources.",
            failing=True,
        )
    return Diagnosis(
        reason="PodsRefused",
        message=f"The cluster refuses to create engine pods: {said}",
        next_action="Change what the message names: a policy of the namespace, or spec.resources.",
        failing=True,
    )
