"""Defaults of built-in kinds that controllers, the node and kubectl rely on; no more than that."""

from collections.abc import Callable, Mapping
from typing import Any

from .resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    Resource,
)

_POD_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
}
_CONTAINER = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def _fill(target: Object, defaults: Object) -> None:
    for key, value in defaults.items():
        target.setdefault(key, value)


def _default_pod_spec(spec: Object) -> None:
    _fill(spec, _POD_SPEC)
    spec.setdefault("securityContext", {})
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _default_container(container)
    for volume in spec.get("volumes") or []:
        for source in ("secret", "configMap", "projected", "downwardAPI"):
            if isinstance(volume.get(source), dict):
                volume[source].setdefault("defaultMode", 0o644)


def _default_container(container: Object) -> None:
    _fill(container, _CONTAINER)
    image = container.get("image") or ""
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    resources = container.setdefault("resources", {})
    if isinstance(resources.get("limits"), dict):
        # What is limited and not requested is requested at its limit.
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for entry in container.get("env") or []:
        field = (entry.get("valueFrom") or {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(name)
        if isinstance(probe, dict):
            _fill(probe, _PROBE)
            if isinstance(probe.get("httpGet"), dict):
                _fill(probe["httpGet"], {"scheme": "HTTP", "path": "/"})


def _default_pod(pod: Object) -> None:
    _default_pod_spec(pod["spec"])
    pod["spec"].setdefault("serviceAccountName", "default")
    pod["spec"].setdefault("serviceAccount", pod["spec"]["serviceAccountName"])
    pod.setdefault("status", {}).setdefault("phase", "Pending")
    pod["status"].setdefault("qosClass", quality_of_service(pod["spec"]))


def quality_of_service(spec: Mapping[str, Any]) -> str:
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    resources = [container.get("resources") or {} for container in containers]
    if not any(item.get("requests") or item.get("limits") for item in resources):
        return "BestEffort"
    for item in resources:
        limits = item.get("limits") or {}
        requests = {**limits, **(item.get("requests") or {})}
        if any(
            name not in limits or requests.get(name) != limits[name] for name in ("cpu", "memory")
        ):
            return "Burstable"
    return "Guaranteed"


def _default_template(spec: Object) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        _default_pod_spec(template.setdefault("spec", {}))
        template.setdefault("metadata", {})


def _default_deployment(deployment: Object) -> None:
    spec = deployment["spec"]
    _fill(spec, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        _fill(rolling, {"maxUnavailable": "25%", "maxSurge": "25%"})
    _default_template(spec)


def _default_replica_set(replica_set: Object) -> None:
    replica_set["spec"].setdefault("replicas", 1)
    _default_template(replica_set["spec"])
    labels = (replica_set["spec"].get("template") or {}).get("metadata", {}).get("labels")
    if labels:
        replica_set["spec"].setdefault("selector", {"matchLabels": dict(labels)})


def _default_stateful_set(stateful_set: Object) -> None:
    spec = stateful_set["spec"]
    _fill(spec, {"replicas": 1, "revisionHistoryLimit": 10, "podManagementPolicy": "OrderedReady"})
    spec.setdefault("updateStrategy", {}).setdefault("type", "RollingUpdate")
    _default_template(spec)


def _default_job(job: Object) -> None:
    _fill(job["spec"], {"parallelism": 1, "completions": 1, "backoffLimit": 6, "suspend": False})
    _default_template(job["spec"])


def _default_service(service: Object) -> None:
    spec = service["spec"]
    _fill(spec, {"type": "ClusterIP", "sessionAffinity": "None"})
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("ipFamilies", ["IPv4"])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        if spec.get("clusterIP") != "None" or "port" in port:
            port.setdefault("targetPort", port.get("port"))


def _default_secret(secret: Object) -> None:
    secret.setdefault("type", "Opaque")


def _default_namespace(namespace: Object) -> None:
    labels = namespace["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = namespace["metadata"]["name"]
    namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    namespace.setdefault("status", {}).setdefault("phase", "Active")


def _default_definition(crd: Object) -> None:
    names = crd["spec"]["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    crd["spec"].setdefault("conversion", {"strategy": "None"})


def _default_autoscaler(autoscaler: Object) -> None:
    autoscaler["spec"].setdefault("minReplicas", 1)


_DEFAULTS: dict[Resource, Callable[[Object], None]] = {
    PODS: _default_pod,
    DEPLOYMENTS: _default_deployment,
    REPLICA_SETS: _default_replica_set,
    STATEFUL_SETS: _default_stateful_set,
    JOBS: _default_job,
    SERVICES: _default_service,
    SECRETS: _default_secret,
    NAMESPACES: _default_namespace,
    CUSTOM_RESOURCE_DEFINITIONS: _default_definition,
    HORIZONTAL_POD_AUTOSCALERS: _default_autoscaler,
}


def fill_builtin_defaults(resource: Resource, obj: Object) -> None:
    """Adds defaults in place to an object of known structure (its `spec` is an object)."""
    fill = _DEFAULTS.get(resource)
    if fill is not None:
        fill(obj)
