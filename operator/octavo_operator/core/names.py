"""Names and labels of what the operator makes for an InferenceService."""

from collections.abc import Mapping
from typing import Final

from octavo_wire.names import (
    API_GROUP,
    FIELD_MANAGER,
    LABEL_COMPONENT,
    LABEL_ENGINE_TYPE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_SERVICE,
    engines_service_name,
)

COMPONENT_ENGINE: Final = "engine"
# On a pod: which template it was made from, so that the pods of the current spec can be told.
LABEL_REVISION: Final = f"{API_GROUP}/revision"
# On a child: hash of the manifest that was applied, so that a removed field is noticed.
ANNOTATION_MANIFEST: Final = f"{API_GROUP}/manifest-hash"
OWNED_SELECTOR: Final = f"{LABEL_MANAGED_BY}={FIELD_MANAGER}"


def deployment_name(service: str) -> str:
    return service


def service_names(service: str) -> tuple[str, str]:
    """The Service that clients call, and the headless one that names the engine pods."""
    return service, engines_service_name(service)


def selector_labels(service: str) -> dict[str, str]:
    """Labels that pick the engine pods; a Deployment's selector never changes."""
    return {LABEL_SERVICE: service, LABEL_COMPONENT: COMPONENT_ENGINE}


def child_labels(service: str) -> dict[str, str]:
    """Labels of every object made for `service`."""
    return {
        LABEL_NAME: "octavo",
        LABEL_COMPONENT: COMPONENT_ENGINE,
        LABEL_MANAGED_BY: FIELD_MANAGER,
        LABEL_SERVICE: service,
    }


def pod_labels(service: str, revision: str) -> dict[str, str]:
    return {**child_labels(service), LABEL_ENGINE_TYPE: "vllm", LABEL_REVISION: revision}


def format_selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def service_url(service: str, namespace: str) -> str:
    """Where the cluster reaches the service: port 80, so that no port is written."""
    return f"http://{service}.{namespace}.svc"
