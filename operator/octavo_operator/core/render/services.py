"""The Service that clients call, and the headless one that names the engine pods."""

from typing import Any

from octavo_operator.api.spec import InferenceService
from octavo_operator.core.names import selector_labels, service_names
from octavo_operator.core.render.common import make_metadata, with_manifest_hash
from octavo_wire.names import ENGINE_PORT, ENGINE_PORT_NAME, SERVICE_PORT


def make_services(service: InferenceService) -> list[dict[str, Any]]:
    public, engines = service_names(service.name)
    return [
        _make_service(service, public, SERVICE_PORT, {"type": "ClusterIP"}),
        # Not-ready pods stay out of it as well: a name that resolves can serve.
        _make_service(service, engines, ENGINE_PORT, {"type": "ClusterIP", "clusterIP": "None"}),
    ]


def _make_service(
    service: InferenceService, name: str, port: int, kind: dict[str, str]
) -> dict[str, Any]:
    return with_manifest_hash(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": make_metadata(service, name),
            "spec": {
                **kind,
                "selector": selector_labels(service.name),
                "ports": [
                    {
                        "name": ENGINE_PORT_NAME,
                        "port": port,
                        "protocol": "TCP",
                        "targetPort": ENGINE_PORT_NAME,
                        "appProtocol": "http",
                    }
                ],
            },
        }
    )
