"""What cannot work is refused here, before a pod exists, with what can."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from octavo_operator.api.quantities import parse_quantity
from octavo_operator.api.spec import InferenceService, SpecError
from octavo_wire.names import GPU_RESOURCE

# Python, torch and a tokenizer alone take about 400 MiB before a model is read.
LEAST_MEMORY: Final = "512Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a spec is not acted upon: becomes the condition Planned=False."""

    reason: str
    message: str
    next_action: str


def refusal_of_spec(error: SpecError) -> Refusal:
    return Refusal(reason="InvalidSpec", message=str(error), next_action=error.next_action)


def find_refusal(service: InferenceService) -> Refusal | None:
    """The first reason why `service` cannot work as asked, or None."""
    return (
        _check_parallelism(service)
        or _check_quantities(service)
        or _check_gpus(service)
        or _check_memory(service)
    )


def _check_parallelism(service: InferenceService) -> Refusal | None:
    parallelism = service.spec.engine.parallelism
    for field, ways in (("tensor", parallelism.tensor), ("pipeline", parallelism.pipeline)):
        if ways > 1:
            return Refusal(
                reason="ParallelismNotSupported",
                message=f"spec.engine.parallelism.{field} is {ways}, but this version runs each "
                "replica on one accelerator.",
                next_action=f"Set spec.engine.parallelism.{field} to 1; for more throughput raise "
                "spec.replicas, for a larger model choose an accelerator with more memory.",
            )
    return None


def _check_quantities(service: InferenceService) -> Refusal | None:
    resources = service.spec.resources
    for resource, limit in resources.limits.items():
        request = resources.requests.get(resource)
        if request is not None and parse_quantity(request) > parse_quantity(limit):
            return Refusal(
                reason="InvalidResources",
                message=f"spec.resources.requests[{resource}] ({request}) is more than the limit "
                f"({limit}).",
                next_action="Lower the request or raise the limit.",
            )
    return None


def _check_gpus(service: InferenceService) -> Refusal | None:
    resources = service.spec.resources
    request, limit = resources.requests.get(GPU_RESOURCE), resources.limits.get(GPU_RESOURCE)
    for given in (request, limit):
        if given is not None and parse_quantity(given) % 1:
            return Refusal(
                reason="InvalidResources",
                message=f"{GPU_RESOURCE}: {given} is no whole number; a GPU is given to one "
                "container at a time.",
                next_action=f"Ask for {GPU_RESOURCE}: 1.",
            )
    if (
        request is not None
        and limit is not None
        and parse_quantity(request) != parse_quantity(limit)
    ):
        return Refusal(
            reason="InvalidResources",
            message=f"spec.resources asks for {request} and limits to {limit} of {GPU_RESOURCE}; "
            "Kubernetes wants both equal.",
            next_action="Give the limit alone.",
        )
    parallelism = service.spec.engine.parallelism
    needed = parallelism.tensor * parallelism.pipeline
    if service.gpus > needed:
        return Refusal(
            reason="AcceleratorCountMismatch",
            message=f"spec.resources asks for {service.gpus} of {GPU_RESOURCE}, but a replica uses "
            f"{needed} (parallelism.tensor x parallelism.pipeline).",
            next_action=f"Ask for {GPU_RESOURCE}: {needed}, and raise spec.replicas to use more.",
        )
    return None


def _check_memory(service: InferenceService) -> Refusal | None:
    resources = service.spec.resources
    sources: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("limits", resources.limits),
        ("requests", resources.requests),
    )
    # Without a limit of its own a CPU engine is limited to its request.
    for name, quantities in sources if service.gpus == 0 else sources[:1]:
        given = quantities.get("memory")
        if given is None:
            continue
        if parse_quantity(given) < parse_quantity(LEAST_MEMORY):
            return Refusal(
                reason="InsufficientMemory",
                message=f"spec.resources.{name}.memory is {given}; the engine needs {LEAST_MEMORY} "
                "before it has read any model.",
                next_action=f"Set spec.resources.{name}.memory to the model's size plus 1Gi.",
            )
        return None
    return None
