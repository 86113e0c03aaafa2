"""The columns of `kubectl get` for built-in kinds, as the real server prints them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .clock import parse_timestamp
from .durations import human_duration
from .pod_status import summarize
from .resources import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    Object,
)
from .selectors import selector_text

Cell = Callable[[Object, datetime], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `wide` ones show with `-o wide` only."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False


def age_of(stamp: str | None, now: datetime) -> str:
    if not stamp:
        return "<unknown>"
    return human_duration((now - parse_timestamp(stamp)).total_seconds())


def _dig(obj: Any, path: str, default: Any) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return default if obj is None else obj


def _at(path: str, default: Any = "<none>") -> Cell:
    return lambda obj, _: _dig(obj, path, default)


def _count(path: str) -> Cell:
    return lambda obj, _: len(_dig(obj, path, []))


def _joined(values: list[str], limit: int = 3) -> str:
    if not values:
        return "<none>"
    more = f" + {len(values) - limit} more..." if len(values) > limit else ""
    return ",".join(values[:limit]) + more


def _of(path: str, wanted: str) -> Cell:
    return lambda obj, _: f"{_dig(obj, path, 0)}/{_dig(obj, wanted, 0)}"


_NAME = Column("Name", _at("metadata.name"))
_AGE = Column("Age", lambda obj, now: age_of(obj["metadata"].get("creationTimestamp"), now))


def _template_containers(obj: Object, field: str) -> str:
    containers = _dig(obj, "spec.template.spec.containers", [])
    return ",".join(str(one.get(field, "")) for one in containers)


_TEMPLATE = [
    Column("Containers", lambda obj, _: _template_containers(obj, "name"), wide=True),
    Column("Images", lambda obj, _: _template_containers(obj, "image"), wide=True),
]
_SELECTOR = Column(
    "Selector", lambda obj, _: selector_text(_dig(obj, "spec.selector", {})) or "<none>", wide=True
)


def _node_status(node: Object, _: datetime) -> str:
    ready = next(
        (one for one in _dig(node, "status.conditions", []) if one.get("type") == "Ready"), None
    )
    text = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return text + (",SchedulingDisabled" if _dig(node, "spec.unschedulable", False) else "")


def _node_roles(node: Object, _: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(k.removeprefix(prefix) for k in labels if k.startswith(prefix))) or (
        "<none>"
    )


def _node_address(node: Object, _: datetime) -> str:
    addresses = _dig(node, "status.addresses", [])
    return next((one["address"] for one in addresses if one["type"] == "InternalIP"), "<none>")


def _service_ports(service: Object, _: datetime) -> str:
    def one(port: Object) -> str:
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"

    return ",".join(map(one, _dig(service, "spec.ports", []))) or "<none>"


def _service_selector(service: Object, _: datetime) -> str:
    return selector_text({"matchLabels": _dig(service, "spec.selector", {})}) or "<none>"


def _endpoints(endpoints: Object, _: datetime) -> str:
    pairs = [
        f"{address['ip']}:{port['port']}"
        for subset in endpoints.get("subsets") or []
        for port in subset.get("ports") or []
        for address in subset.get("addresses") or []
    ]
    return _joined(pairs)


def _event_last_seen(event: Object, now: datetime) -> str:
    series = event.get("series") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age_of(seen or event["metadata"].get("creationTimestamp"), now)


def _event_object(event: Object, _: datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _pods_ready_probe(field: str) -> Cell:
    return lambda pod, now: getattr(summarize(pod, now), field)


def _readiness_gates(pod: Object, _: datetime) -> str:
    gates = [one["conditionType"] for one in _dig(pod, "spec.readinessGates", [])]
    if not gates:
        return "<none>"
    true = {one["type"] for one in _dig(pod, "status.conditions", []) if one["status"] == "True"}
    return f"{sum(gate in true for gate in gates)}/{len(gates)}"


def _job_status(job: Object, _: datetime) -> str:
    met = [one["type"] for one in _dig(job, "status.conditions", []) if one["status"] == "True"]
    return next((name for name in ("Complete", "Failed", "Suspended") if name in met), "Running")


def _role(binding: Object, _: datetime) -> str:
    return f"{_dig(binding, 'roleRef.kind', '')}/{_dig(binding, 'roleRef.name', '')}"


BUILTIN_COLUMNS: dict[tuple[str, str], list[Column]] = {
    NAMESPACES.table: [_NAME, Column("Status", _at("status.phase")), _AGE],
    NODES.table: [
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status.nodeInfo.kubeletVersion", "")),
        Column("Internal-IP", _node_address, wide=True),
        Column("External-IP", lambda *_: "<none>", wide=True),
        Column("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
        Column("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        Column(
            "Container-Runtime",
            _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"),
            wide=True,
        ),
    ],
    PODS.table: [
        _NAME,
        Column("Ready", _pods_ready_probe("ready")),
        Column("Status", _pods_ready_probe("status")),
        Column("Restarts", _pods_ready_probe("restarts")),
        _AGE,
        Column("IP", _at("status.podIP"), wide=True),
        Column("Node", _at("spec.nodeName"), wide=True),
        Column("Nominated Node", _at("status.nominatedNodeName"), wide=True),
        Column("Readiness Gates", _readiness_gates, wide=True),
    ],
    DEPLOYMENTS.table: [
        _NAME,
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        Column("Up-to-date", _at("status.updatedReplicas", 0), "integer"),
        Column("Available", _at("status.availableReplicas", 0), "integer"),
        _AGE,
        *_TEMPLATE,
        _SELECTOR,
    ],
    REPLICA_SETS.table: [
        _NAME,
        Column("Desired", _at("spec.replicas", 0), "integer"),
        Column("Current", _at("status.replicas", 0), "integer"),
        Column("Ready", _at("status.readyReplicas", 0), "integer"),
        _AGE,
        *_TEMPLATE,
        _SELECTOR,
    ],
    STATEFUL_SETS.table: [
        _NAME,
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        _AGE,
        *_TEMPLATE,
    ],
    JOBS.table: [
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _of("status.succeeded", "spec.completions")),
        _AGE,
        *_TEMPLATE,
        _SELECTOR,
    ],
    SERVICES.table: [
        _NAME,
        Column("Type", _at("spec.type")),
        Column("Cluster-IP", _at("spec.clusterIP")),
        Column("External-IP", lambda *_: "<none>"),
        Column("Port(s)", _service_ports),
        _AGE,
        Column("Selector", _service_selector, wide=True),
    ],
    ENDPOINTS.table: [_NAME, Column("Endpoints", _endpoints), _AGE],
    ENDPOINT_SLICES.table: [
        _NAME,
        Column("AddressType", _at("addressType")),
        Column(
            "Ports",
            lambda obj, _: (
                _joined([str(one.get("port", "*")) for one in obj.get("ports") or []])
                if obj.get("ports")
                else "<unset>"
            ),
        ),
        Column(
            "Endpoints",
            lambda obj, _: (
                _joined(
                    [address for one in obj.get("endpoints") or [] for address in one["addresses"]]
                )
                if obj.get("endpoints")
                else "<unset>"
            ),
        ),
        _AGE,
    ],
    EVENTS.table: [
        Column("Last Seen", _event_last_seen),
        Column("Type", _at("type", "")),
        Column("Reason", _at("reason", "")),
        Column("Object", _event_object),
        Column("Subobject", _at("involvedObject.fieldPath", ""), wide=True),
        Column("Source", _at("source.component", ""), wide=True),
        Column("Message", lambda obj, _: str(obj.get("message", "")).strip()),
        Column("First Seen", lambda obj, now: age_of(obj.get("firstTimestamp"), now), wide=True),
        Column("Count", _at("count", 1), "string", wide=True),
        Column("Name", _at("metadata.name"), wide=True),
    ],
    CONFIG_MAPS.table: [_NAME, Column("Data", _count("data"), "string"), _AGE],
    SECRETS.table: [
        _NAME,
        Column("Type", _at("type", "")),
        Column("Data", _count("data"), "integer"),
        _AGE,
    ],
    SERVICE_ACCOUNTS.table: [_NAME, _AGE],
    LEASES.table: [_NAME, Column("Holder", _at("spec.holderIdentity", "")), _AGE],
    ROLE_BINDINGS.table: [_NAME, Column("Role", _role), _AGE],
    CLUSTER_ROLE_BINDINGS.table: [_NAME, Column("Role", _role), _AGE],
    POD_DISRUPTION_BUDGETS.table: [
        _NAME,
        Column("Min Available", _at("spec.minAvailable", "N/A")),
        Column("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", _at("status.disruptionsAllowed", 0), "integer"),
        _AGE,
    ],
    HORIZONTAL_POD_AUTOSCALERS.table: [
        _NAME,
        Column(
            "Reference",
            lambda obj, _: (
                f"{obj['spec']['scaleTargetRef']['kind']}/{obj['spec']['scaleTargetRef']['name']}"
            ),
        ),
        Column("MinPods", _at("spec.minReplicas", "<unset>")),
        Column("MaxPods", _at("spec.maxReplicas", 0), "integer"),
        Column("Replicas", _at("status.currentReplicas", 0), "integer"),
        _AGE,
    ],
    PERSISTENT_VOLUME_CLAIMS.table: [
        _NAME,
        Column("Status", _at("status.phase", "Pending")),
        Column("Volume", _at("spec.volumeName", "")),
        Column("Capacity", _at("status.capacity.storage", "")),
        Column("StorageClass", _at("spec.storageClassName", "")),
        _AGE,
    ],
    CUSTOM_RESOURCE_DEFINITIONS.table: [
        _NAME,
        Column("Created At", _at("metadata.creationTimestamp"), "date"),
    ],
}
NAME_AND_AGE = [_NAME, _AGE]
