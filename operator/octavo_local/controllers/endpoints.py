"""Service -> the addresses behind it, as an EndpointSlice and as the older Endpoints."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo_local.objects import (
    Object,
    is_deleting,
    is_true,
    labels_of,
    make_controller_reference,
    name_of,
    namespace_of,
    stable_suffix,
)

SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"


def selects(service: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    selector = service["spec"].get("selector") or {}
    return bool(selector) and selector.items() <= labels_of(pod).items()


def make_endpoint_slice(service: Mapping[str, Any], pods: Sequence[Object]) -> Object:
    """The slice of a Service with a selector, from all pods of its namespace."""
    chosen = _backing_pods(service, pods)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name_of(service)[:52]}-{stable_suffix(service['metadata']['uid'], 5)}",
            "namespace": namespace_of(service),
            "labels": {
                **labels_of(service),
                SERVICE_NAME: name_of(service),
                MANAGED_BY: "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [make_controller_reference(service, "v1", "Service")],
        },
        "addressType": "IPv4",
        "endpoints": [_make_endpoint(service, pod) for pod in chosen],
        "ports": _resolve_ports(service, chosen),
    }


def make_endpoints(service: Mapping[str, Any], pods: Sequence[Object]) -> Object:
    """The Endpoints object of a Service with a selector, from all pods of its namespace."""
    chosen = _backing_pods(service, pods)
    groups: dict[str, list[Object]] = {"addresses": [], "notReadyAddresses": []}
    for pod in chosen:
        conditions = _conditions(service, pod)
        if conditions["terminating"] and not conditions["ready"]:
            continue
        group = "addresses" if conditions["ready"] else "notReadyAddresses"
        groups[group].append(
            {
                "ip": pod["status"]["podIP"],
                "nodeName": pod["spec"]["nodeName"],
                "targetRef": _target(pod),
            }
        )
    subset: Object = {group: addresses for group, addresses in groups.items() if addresses}
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": name_of(service),
            "namespace": namespace_of(service),
            "labels": dict(labels_of(service)),
            "ownerReferences": [make_controller_reference(service, "v1", "Service")],
        },
        "subsets": [{**subset, "ports": _resolve_ports(service, chosen)}] if subset else [],
    }


def _backing_pods(service: Mapping[str, Any], pods: Sequence[Object]) -> list[Object]:
    chosen = [
        pod
        for pod in pods
        if selects(service, pod)
        and pod["spec"].get("nodeName")
        and (pod.get("status") or {}).get("podIP")
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    return sorted(chosen, key=name_of)


def _conditions(service: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, bool]:
    publish_all = bool(service["spec"].get("publishNotReadyAddresses"))
    serving, terminating = is_true(pod, "Ready"), is_deleting(pod)
    ready = publish_all or (serving and not terminating)
    return {"ready": ready, "serving": serving or publish_all, "terminating": terminating}


def _make_endpoint(service: Mapping[str, Any], pod: Mapping[str, Any]) -> Object:
    endpoint: Object = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": _conditions(service, pod),
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": _target(pod),
    }
    if pod["spec"].get("hostname"):
        endpoint["hostname"] = pod["spec"]["hostname"]
    return endpoint


def _target(pod: Mapping[str, Any]) -> Object:
    return {
        "kind": "Pod",
        "namespace": namespace_of(pod),
        "name": name_of(pod),
        "uid": pod["metadata"]["uid"],
    }


def _resolve_ports(service: Mapping[str, Any], pods: Sequence[Object]) -> list[Object]:
    """Target ports by number; a name is looked up in the first pod that has it."""
    resolved = []
    for port in service["spec"].get("ports") or ():
        target: Any = port.get("targetPort", port["port"])
        if isinstance(target, str) and target.isdigit():
            target = int(target)
        if isinstance(target, str):
            target = next(
                (
                    declared["containerPort"]
                    for pod in pods
                    for container in pod["spec"]["containers"]
                    for declared in container.get("ports") or ()
                    if declared.get("name") == target
                ),
                None,
            )
        if target is not None:
            entry = {"port": int(target), "protocol": port.get("protocol", "TCP")}
            resolved.append({"name": port.get("name") or "", **entry})
    return resolved
