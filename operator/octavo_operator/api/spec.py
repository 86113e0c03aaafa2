"""What a user writes into an InferenceService, read into frozen values.

The API server has checked the schema already; this checks again, since a spec may have been stored
under another schema, and it refuses what it does not know instead of passing over it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from octavo_operator.api.quantities import parse_quantity, parse_spec_quantity
from octavo_wire.names import GPU_RESOURCE
from octavo_wire.settings import DTYPES

MODEL_SCHEMES: Final = ("package://", "file:///")
# `<name>-engines` must be a DNS label of 63 characters.
MAX_NAME_LENGTH: Final = 55
MAX_RESOURCES: Final = 16

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")


class SpecError(ValueError):
    """A field cannot be worked with: which one, why, and what to do about it."""

    def __init__(self, path: str, problem: str, next_action: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem
        self.next_action = next_action


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    uri: str
    name: str  # what requests put into `model`


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismSpec:
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """None leaves the choice to the engine."""

    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    parallelism: ParallelismSpec = ParallelismSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesSpec:
    """Quantities by resource name, as written."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceServiceSpec:
    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    resources: ResourcesSpec = field(default_factory=ResourcesSpec)
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceService:
    name: str
    namespace: str
    uid: str
    generation: int
    spec: InferenceServiceSpec

    @property
    def gpus(self) -> int:
        """GPUs that one replica asks for; 0 runs on CPUs."""
        resources = self.spec.resources
        given = resources.limits.get(GPU_RESOURCE) or resources.requests.get(GPU_RESOURCE) or "0"
        return int(parse_quantity(given))


def field_name(attribute: str) -> str:
    """The field of the API that an attribute is read from: max_num_seqs, maxNumSeqs."""
    head, *rest = attribute.split("_")
    return head + "".join(word.capitalize() for word in rest)


def parse_service(obj: Mapping[str, Any]) -> InferenceService:
    """Read an InferenceService as the API returns it; raises SpecError that names the field."""
    meta = obj["metadata"]
    name = str(meta["name"])
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise SpecError(
            "metadata.name",
            f"{name!r} cannot name a Service: it must start with a lower-case letter, hold only "
            f"a-z, 0-9 and -, and have at most {MAX_NAME_LENGTH} characters",
            "Create the InferenceService under a shorter or simpler name.",
        )
    spec = _mapping(obj.get("spec"), "spec")
    _check_known(spec, "spec", InferenceServiceSpec)
    return InferenceService(
        name=name,
        namespace=str(meta["namespace"]),
        uid=str(meta["uid"]),
        generation=int(meta.get("generation", 1)),
        spec=InferenceServiceSpec(
            model=_parse_model(_mapping(spec.get("model"), "spec.model"), name),
            engine=_parse_engine(_mapping(spec.get("engine"), "spec.engine")),
            resources=_parse_resources(_mapping(spec.get("resources"), "spec.resources")),
            replicas=_integer(spec, "spec", "replicas", 0, 1000, 1),
        ),
    )


def _parse_model(model: Mapping[str, Any], default_name: str) -> ModelSpec:
    _check_known(model, "spec.model", ModelSpec)
    uri = model.get("uri")
    if not isinstance(uri, str) or not uri.startswith(MODEL_SCHEMES) or len(uri) > 1024:
        raise SpecError(
            "spec.model.uri",
            f"{uri!r} is no source that this version can read",
            "Name a model as package://MODULE/FILE or file:///PATH.",
        )
    name = model.get("name", default_name)
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name) or len(name) > 253:
        raise SpecError(
            "spec.model.name",
            f"{name!r} is no model name",
            "Start it with a letter or digit and go on with letters, digits and ._/:-",
        )
    return ModelSpec(uri=uri, name=name)


def _parse_engine(engine: Mapping[str, Any]) -> EngineSpec:
    path = "spec.engine"
    _check_known(engine, path, EngineSpec)
    ratio = engine.get("gpuMemoryUtilization")
    numeric = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if ratio is not None and not (numeric and 0.01 <= ratio <= 1):
        raise SpecError(
            f"{path}.gpuMemoryUtilization",
            f"{ratio!r} is no share of memory",
            "Give a number from 0.01 to 1, or leave it out.",
        )
    dtype = engine.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise SpecError(
            f"{path}.dtype",
            f"{dtype!r} is not one of {', '.join(DTYPES)}",
            "Name one of them, or leave it out.",
        )
    parallelism = _mapping(engine.get("parallelism"), f"{path}.parallelism")
    _check_known(parallelism, f"{path}.parallelism", ParallelismSpec)
    return EngineSpec(
        gpu_memory_utilization=None if ratio is None else float(ratio),
        max_num_seqs=_optional_integer(engine, path, "maxNumSeqs", 1, 4096),
        max_model_len=_optional_integer(engine, path, "maxModelLen", 1, 2**31 - 1),
        dtype=dtype,
        parallelism=ParallelismSpec(
            tensor=_integer(parallelism, f"{path}.parallelism", "tensor", 1, 64, 1),
            pipeline=_integer(parallelism, f"{path}.parallelism", "pipeline", 1, 64, 1),
        ),
    )


def _parse_resources(resources: Mapping[str, Any]) -> ResourcesSpec:
    _check_known(resources, "spec.resources", ResourcesSpec)
    return ResourcesSpec(
        requests=_parse_quantities(resources.get("requests"), "spec.resources.requests"),
        limits=_parse_quantities(resources.get("limits"), "spec.resources.limits"),
    )


def _parse_quantities(value: object, path: str) -> Mapping[str, str]:
    quantities = _mapping(value, path)
    if len(quantities) > MAX_RESOURCES:
        raise SpecError(path, f"names more than {MAX_RESOURCES} resources", "Name fewer.")
    for resource, quantity in quantities.items():
        try:
            parse_spec_quantity(str(quantity))
        except ValueError as error:
            raise SpecError(
                f"{path}[{resource}]", str(error), "Write a number with m, k, M, G, Ki, Mi or Gi."
            ) from None
    return {str(resource): str(quantity) for resource, quantity in quantities.items()}


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(path, "is no object", "Write it as key: value lines.")
    return value


def _check_known(value: Mapping[str, Any], path: str, kind: type[Any]) -> None:
    known = [field_name(attribute.name) for attribute in fields(kind)]
    for key in value:
        if key not in known:
            raise SpecError(
                f"{path}.{key}",
                "is unknown to this operator",
                f"Remove it, or run an operator that knows it. Known here: {', '.join(known)}.",
            )


def _optional_integer(
    value: Mapping[str, Any], path: str, key: str, least: int, most: int
) -> int | None:
    return None if value.get(key) is None else _integer(value, path, key, least, most, least)


def _integer(
    value: Mapping[str, Any], path: str, key: str, least: int, most: int, default: int
) -> int:
    number = value.get(key, default)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise SpecError(
            f"{path}.{key}",
            f"{number!r} is out of range",
            f"Give a whole number from {least} to {most}.",
        )
    return number
