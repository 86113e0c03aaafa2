"""Faults of built-in objects that a schema cannot see, and of names and labels of every object."""

import base64
import re
from collections.abc import Callable, Iterator
from fractions import Fraction

from octavo_local.objects import matches_selector
from octavo_local.quantities import parse_quantity

from .checking import shown
from .errors import Cause
from .kinds import Kind
from .resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    Resource,
)

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED_NAME = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_PATH_SEGMENT_NAMES = (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)
_LABEL_NAMES = (NAMESPACES, SERVICES)


def _invalid(field: str, value: object, why: str) -> Cause:
    return Cause(field=field, message=f"Invalid value: {shown(value)}: {why}")


def _required(field: str, why: str = "") -> Cause:
    return Cause(
        field=field,
        reason="FieldValueRequired",
        message=f"Required value: {why}" if why else "Required value",
    )


def _unsupported(field: str, value: object, allowed: tuple[str, ...]) -> Cause:
    choices = ", ".join(f'"{choice}"' for choice in allowed)
    return Cause(
        field=field,
        reason="FieldValueNotSupported",
        message=f"Unsupported value: {shown(value)}: supported values: {choices}",
    )


def check_metadata(resource: Resource, metadata: Object) -> Iterator[Cause]:
    name = metadata["name"]
    if resource in _PATH_SEGMENT_NAMES:
        if "/" in name or "%" in name or name in (".", ".."):
            yield _invalid("metadata.name", name, "may not contain '/' or '%'")
    elif resource in _LABEL_NAMES:
        if len(name) > 63 or not _DNS_LABEL.fullmatch(name):
            yield _invalid(
                "metadata.name",
                name,
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters "
                "or '-', must start and end with an alphanumeric character, and has at most 63 "
                f"characters (e.g. 'my-name', regex used for validation is '{_LABEL}')",
            )
    elif len(name) > 253 or not _DNS_SUBDOMAIN.fullmatch(name):
        yield _invalid(
            "metadata.name",
            name,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
            "'-' or '.', and must start and end with an alphanumeric character "
            f"(e.g. 'example.com', regex used for validation is '{_DNS_SUBDOMAIN.pattern}')",
        )
    yield from _check_labels(metadata.get("labels") or {}, "metadata.labels")
    for key in metadata.get("annotations") or {}:
        if not _QUALIFIED_NAME.fullmatch(key.lower()):
            yield _invalid("metadata.annotations", key, "must be a qualified name")


def _check_labels(labels: Object, field: str) -> Iterator[Cause]:
    for key, value in labels.items():
        if not _QUALIFIED_NAME.fullmatch(key):
            yield _invalid(field, key, "a label's key must be a qualified name")
        if not _LABEL_VALUE.fullmatch(str(value)):
            yield _invalid(
                field,
                value,
                "a valid label must be an empty string or consist of alphanumeric characters, "
                "'-', '_' or '.', must start and end with an alphanumeric character, and has at "
                "most 63 characters",
            )


def _check_pod_spec(spec: Object, path: str, restart: tuple[str, ...]) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield _required(f"{path}.containers")
    if spec["restartPolicy"] not in restart:
        yield _unsupported(f"{path}.restartPolicy", spec["restartPolicy"], restart)
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            field = f"{path}.{group}[{index}]"
            if container["name"] in names:
                yield Cause(
                    field=f"{field}.name",
                    reason="FieldValueDuplicate",
                    message=f"Duplicate value: {shown(container['name'])}",
                )
            names.add(container["name"])
            yield from _check_container(container, field, volumes)


def _check_container(container: Object, field: str, volumes: list[str]) -> Iterator[Cause]:
    if not _DNS_LABEL.fullmatch(container["name"]):
        yield _invalid(f"{field}.name", container["name"], "must be a lowercase RFC 1123 label")
    if not container.get("image"):
        yield _required(f"{field}.image")
    policies = ("Always", "IfNotPresent", "Never")
    if container["imagePullPolicy"] not in policies:
        yield _unsupported(f"{field}.imagePullPolicy", container["imagePullPolicy"], policies)
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield Cause(
                field=f"{field}.volumeMounts[{index}].name",
                reason="FieldValueNotFound",
                message=f"Not found: {shown(mount['name'])}",
            )
    for index, port in enumerate(container.get("ports") or []):
        if not 0 < port["containerPort"] < 65536:
            yield _invalid(
                f"{field}.ports[{index}].containerPort",
                port["containerPort"],
                "must be between 1 and 65535, inclusive",
            )
    yield from _check_resources(container.get("resources") or {}, f"{field}.resources")


def _check_resources(resources: Object, field: str) -> Iterator[Cause]:
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        if parse_quantity(value) < 0:
            yield _invalid(f"{field}.requests", value, "must be greater than or equal to 0")
        if name in limits and parse_quantity(value) > parse_quantity(limits[name]):
            yield _invalid(
                f"{field}.requests",
                str(value),
                f"must be less than or equal to {name} limit of {limits[name]}",
            )
        if "/" in name and limits.get(name) is None:
            yield _required(f"{field}.limits", f"Limit must be set for non overcommitable {name}")
    for name, value in limits.items():
        if "/" in name and parse_quantity(value) != Fraction(int(parse_quantity(value))):
            yield _invalid(f"{field}.limits[{name}]", str(value), "must be an integer")


def _check_pod(pod: Object) -> Iterator[Cause]:
    yield from _check_pod_spec(pod["spec"], "spec", ("Always", "OnFailure", "Never"))


def _unknown_operators(selector: Object) -> list[str]:
    used = [str(term.get("operator")) for term in selector.get("matchExpressions") or ()]
    return [operator for operator in used if operator not in _SELECTOR_OPERATORS]


def _check_workload(workload: Object) -> Iterator[Cause]:
    spec = workload["spec"]
    if spec["replicas"] < 0:
        yield _invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield _invalid("spec.selector", selector, "empty selector is invalid for workloads")
    elif wrong := _unknown_operators(selector):
        yield _invalid("spec.selector.matchExpressions", wrong, "not a valid selector operator")
    elif not matches_selector(selector, labels):
        yield _invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        )
    yield from _check_labels(labels, "spec.template.metadata.labels")
    if "spec" in template:
        yield from _check_pod_spec(template["spec"], "spec.template.spec", ("Always",))


def _check_deployment(deployment: Object) -> Iterator[Cause]:
    strategy = deployment["spec"]["strategy"]
    kinds = ("Recreate", "RollingUpdate")
    if strategy["type"] not in kinds:
        yield _unsupported("spec.strategy.type", strategy["type"], kinds)
    if strategy["type"] == "Recreate" and strategy.get("rollingUpdate") is not None:
        yield Cause(
            field="spec.strategy.rollingUpdate",
            reason="FieldValueForbidden",
            message="Forbidden: may not be specified when strategy `type` is 'Recreate'",
        )
    yield from _check_workload(deployment)


def _check_job(job: Object) -> Iterator[Cause]:
    template = job["spec"]["template"]
    yield from _check_pod_spec(template["spec"], "spec.template.spec", ("OnFailure", "Never"))


def _check_service(service: Object) -> Iterator[Cause]:
    spec = service["spec"]
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec["type"] not in kinds:
        yield _unsupported("spec.type", spec["type"], kinds)
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield _required("spec.ports")
    for index, port in enumerate(ports):
        if not 0 < port["port"] < 65536:
            yield _invalid(
                f"spec.ports[{index}].port", port["port"], "must be between 1 and 65535, inclusive"
            )
        if len(ports) > 1 and not port.get("name"):
            yield _required(f"spec.ports[{index}].name")


def _check_data_keys(obj: Object) -> Iterator[Cause]:
    for field in ("data", "binaryData", "stringData"):
        for key in obj.get(field) or {}:
            if not _DATA_KEY.fullmatch(key):
                yield _invalid(f"{field}[{key}]", key, "a key has letters, digits, '-', '_', '.'")
    encoded = "data" if obj["kind"] == "Secret" else "binaryData"
    for key, value in (obj.get(encoded) or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except ValueError:
            # The value is a secret: it is not shown.
            message = "Invalid value: must be base64; plain text belongs into `stringData`"
            yield Cause(field=f"{encoded}[{key}]", message=message)


_CHECKS: dict[Resource, Callable[[Object], Iterator[Cause]]] = {
    PODS: _check_pod,
    DEPLOYMENTS: _check_deployment,
    REPLICA_SETS: _check_workload,
    STATEFUL_SETS: _check_workload,
    JOBS: _check_job,
    SERVICES: _check_service,
    CONFIG_MAPS: _check_data_keys,
    SECRETS: _check_data_keys,
}


def check_builtin(kind: Kind, obj: Object) -> Iterator[Cause]:
    if kind.resource is CUSTOM_RESOURCE_DEFINITIONS:
        from .crds import check_definition

        yield from check_definition(obj)
    check = _CHECKS.get(kind.resource)
    if check is not None:
        yield from check(obj)


_IMMUTABLE: dict[Resource, tuple[tuple[str, ...], ...]] = {
    DEPLOYMENTS: (("spec", "selector"),),
    REPLICA_SETS: (("spec", "selector"),),
    STATEFUL_SETS: (("spec", "selector"), ("spec", "serviceName")),
    JOBS: (("spec", "selector"), ("spec", "template"), ("spec", "completionMode")),
    SECRETS: (("type",),),
    SERVICES: (("spec", "clusterIP"),),
    ROLE_BINDINGS: (("roleRef",),),
    CLUSTER_ROLE_BINDINGS: (("roleRef",),),
}
_POD_FIELDS_THAT_CHANGE = {
    "activeDeadlineSeconds",
    "nodeName",  # set once, by the scheduler
    "terminationGracePeriodSeconds",
    "tolerations",
    "schedulingGates",
}


def check_change(kind: Kind, old: Object, new: Object) -> Iterator[Cause]:
    """Faults of a change: fields that nobody may change once the object exists."""
    for path in _IMMUTABLE.get(kind.resource, ()):
        before, after = _at(old, path), _at(new, path)
        if before is not None and before != after:
            yield _invalid(".".join(path), after, "field is immutable")
    if kind.resource is PODS and _fixed_pod_fields(old) != _fixed_pod_fields(new):
        yield Cause(
            field="spec",
            reason="FieldValueForbidden",
            message="Forbidden: pod updates may not change fields other than "
            "`spec.containers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` "
            "or `spec.terminationGracePeriodSeconds`",
        )
    if old.get("immutable") and old.get("data") != new.get("data"):
        yield Cause(
            field="data",
            reason="FieldValueForbidden",
            message="Forbidden: field is immutable when `immutable` is set",
        )


def _fixed_pod_fields(pod: Object) -> Object:
    spec = {key: value for key, value in pod["spec"].items() if key not in _POD_FIELDS_THAT_CHANGE}
    for group in ("containers", "initContainers"):
        spec[group] = [
            {key: value for key, value in container.items() if key != "image"}
            for container in spec.get(group) or []
        ]
    return spec


def _at(obj: Object, path: tuple[str, ...]) -> object:
    value: object = obj
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
