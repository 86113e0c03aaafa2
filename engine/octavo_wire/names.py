"""Identifiers that more than one part of Octavo types."""

from typing import Final

API_GROUP: Final = "serving.octavo.dev"
API_VERSION: Final = "v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
FIELD_MANAGER: Final = "octavo-operator"

# Labels on every object that the operator makes for an InferenceService.
LABEL_SERVICE: Final = "serving.octavo.dev/inferenceservice"
LABEL_NAME: Final = "app.kubernetes.io/name"  # "octavo"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"  # "engine"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # FIELD_MANAGER
LABEL_ENGINE_TYPE: Final = "llm-d.ai/engine-type"  # "vllm": the metric names that the pod exports

ENGINE_CONTAINER: Final = "engine"
ENGINE_PORT_NAME: Final = "http"
ENGINE_PORT: Final = 8000
SERVICE_PORT: Final = 80
OPERATOR_HEALTH_PORT: Final = 8080

ROUTE_LIVE: Final = "/health/live"
ROUTE_READY: Final = "/health/ready"
ROUTE_METRICS: Final = "/metrics"
ROUTE_INTERNAL_STATE: Final = "/internal/state"  # for the autoscaler and the gateway

OPERATOR_IMAGE: Final = "octavo-operator"
ENGINE_IMAGE: Final = "octavo-engine"
CPU_TAG_SUFFIX: Final = "-cpu"

GPU_RESOURCE: Final = "nvidia.com/gpu"

# Environment by which a node or an image tells a process about its surroundings.
# The images set ENV_HOST to 0.0.0.0; local mode sets all of them, since its pods share one machine.
ENV_HOST: Final = "OCTAVO_HOST"
ENV_MEMORY_LIMIT: Final = "OCTAVO_MEMORY_LIMIT_BYTES"
ENV_CPU_LIMIT: Final = "OCTAVO_CPU_LIMIT"  # cores, may be fractional: "0.5"
ENV_TERMINATION_LOG: Final = "OCTAVO_TERMINATION_LOG"
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"


def engines_service_name(service_name: str) -> str:
    """The headless Service that names the engine pods of `service_name`."""
    return f"{service_name}-engines"


def engine_image(version: str, *, gpu: bool, registry: str = "") -> str:
    """The engine image of a version; `registry` is a prefix with or without its slash, or empty."""
    tag = version if gpu else version + CPU_TAG_SUFFIX
    prefix = registry.rstrip("/") + "/" if registry else ""
    return f"{prefix}{ENGINE_IMAGE}:{tag}"
