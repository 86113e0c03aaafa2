"""Requests and limits of an engine container, completed where the user left them open."""

from collections.abc import Mapping
from typing import Any, Final

from octavo_operator.api.quantities import parse_quantity
from octavo_operator.api.spec import InferenceService
from octavo_wire.names import GPU_RESOURCE

DEFAULT_CPU: Final = "1"
DEFAULT_MEMORY: Final = "2Gi"
# Beside a GPU the host's memory stages the weights on their way.
DEFAULT_MEMORY_WITH_GPU: Final = "4Gi"


def make_resources(service: InferenceService) -> dict[str, Any]:
    """Container resources. A CPU engine always has a memory limit: its KV cache is sized by it."""
    requests = dict(service.spec.resources.requests)
    limits = dict(service.spec.resources.limits)
    gpu = service.gpus > 0
    if "cpu" not in requests and "cpu" not in limits:
        requests["cpu"] = DEFAULT_CPU
    if "memory" not in requests and "memory" not in limits:
        requests["memory"] = DEFAULT_MEMORY_WITH_GPU if gpu else DEFAULT_MEMORY
    if not gpu and "memory" not in limits:
        limits["memory"] = requests["memory"]
    if gpu:
        # Extended resources are set by their limit; the API copies it to the request.
        limits.setdefault(GPU_RESOURCE, requests.get(GPU_RESOURCE, "0"))
        requests.pop(GPU_RESOURCE, None)
    else:
        requests.pop(GPU_RESOURCE, None)
        limits.pop(GPU_RESOURCE, None)
    return {
        key: dict(sorted(value.items()))
        for key, value in (("limits", limits), ("requests", requests))
        if value
    }


def unlimited_cores(resources: Mapping[str, Any]) -> str | None:
    """Cores that a container without a CPU limit asks for; None where a limit says it already."""
    if "cpu" in resources.get("limits", {}):
        return None
    cores = parse_quantity(resources["requests"]["cpu"])
    return f"{float(cores):g}" if cores else None
