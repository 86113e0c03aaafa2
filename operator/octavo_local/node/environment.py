"""The environment and the words of a container's process, from the pod's spec."""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Final

from octavo_local.objects import annotations_of, labels_of, name_of, namespace_of
from octavo_local.quantities import parse_quantity

HOST_IP: Final = "127.0.0.1"
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_KEYED_FIELD: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

# kind ("ConfigMap" or "Secret"), name -> its data as text, or None when there is no such object
Lookup = Callable[[str, str], Mapping[str, str] | None]


class ConfigError(Exception):
    """The container cannot be started as specified (CreateContainerConfigError)."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; an unknown one stays as it is, and `$$` is a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


def resolve_environment(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    pod_ip: str,
    node: Mapping[str, Any],
    lookup: Lookup,
) -> dict[str, str]:
    """The variables of `envFrom` and `env`, in order; raises ConfigError for what is missing."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        kind, reference = (
            ("ConfigMap", source["configMapRef"])
            if "configMapRef" in source
            else ("Secret", source["secretRef"])
        )
        data = _data(lookup, kind, reference)
        variables.update({prefix + key: value for key, value in (data or {}).items()})
    for variable in container.get("env") or ():
        value_from = variable.get("valueFrom")
        value = (
            expand(str(variable.get("value") or ""), variables)
            if not value_from
            else _resolve(value_from, pod, container, pod_ip=pod_ip, node=node, lookup=lookup)
        )
        if value is not None:
            variables[variable["name"]] = value
    return variables


def resolve_field(pod: Mapping[str, Any], path: str, *, pod_ip: str, host_ip: str) -> str:
    """A field of the downward API; raises ConfigError for one that it does not have."""
    if keyed := _KEYED_FIELD.fullmatch(path):
        source = labels_of(pod) if keyed[1] == "labels" else annotations_of(pod)
        return source.get(keyed[2], "")
    plain: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: name_of(pod),
        "metadata.namespace": lambda: namespace_of(pod),
        "metadata.uid": lambda: str(pod["metadata"]["uid"]),
        "metadata.labels": lambda: _listed(labels_of(pod)),
        "metadata.annotations": lambda: _listed(annotations_of(pod)),
        "spec.nodeName": lambda: str(pod["spec"]["nodeName"]),
        "spec.serviceAccountName": lambda: str(pod["spec"].get("serviceAccountName", "default")),
        "status.podIP": lambda: pod_ip,
        "status.podIPs": lambda: pod_ip,
        "status.hostIP": lambda: host_ip,
        "status.hostIPs": lambda: host_ip,
    }
    if path not in plain:
        raise ConfigError(f"fieldRef {path!r} is not a field that a container can read")
    return plain[path]()


def resolve_resource(
    container: Mapping[str, Any], reference: Mapping[str, Any], node: Mapping[str, Any]
) -> str:
    """A resourceFieldRef: the container's limit or request in units of the divisor, rounded up."""
    kind, _, resource = str(reference["resource"]).partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ConfigError(
            f"resourceFieldRef {reference['resource']!r} is not limits.* or requests.*"
        )
    given = (container.get("resources") or {}).get(kind) or {}
    amount = given.get(resource)
    if amount is None and kind == "limits":
        amount = node["status"]["allocatable"].get(resource)
    divisor = parse_quantity(reference.get("divisor") or 1) or Fraction(1)
    return str(ceil(parse_quantity(amount or 0) / divisor))


def expand_words(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    return [expand(str(word), variables) for word in words]


def _listed(entries: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))


def _data(lookup: Lookup, kind: str, reference: Mapping[str, Any]) -> Mapping[str, str] | None:
    data = lookup(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    return data


def _resolve(
    source: Mapping[str, Any],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    pod_ip: str,
    node: Mapping[str, Any],
    lookup: Lookup,
) -> str | None:
    if "fieldRef" in source:
        return resolve_field(pod, source["fieldRef"]["fieldPath"], pod_ip=pod_ip, host_ip=HOST_IP)
    if "resourceFieldRef" in source:
        reference = source["resourceFieldRef"]
        named = reference.get("containerName")
        chosen = next(
            (item for item in pod["spec"]["containers"] if item["name"] == named), container
        )
        return resolve_resource(chosen, reference, node)
    for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if field in source:
            reference = source[field]
            data = _data(lookup, kind, reference)
            if data is None:
                return None
            if reference["key"] not in data:
                if reference.get("optional"):
                    return None
                raise ConfigError(
                    f"couldn't find key {reference['key']} in {kind} {namespace_of(pod)}/"
                    f"{reference['name']}"
                )
            return data[reference["key"]]
    raise ConfigError(f"valueFrom {', '.join(source)} is not supported by this node")
