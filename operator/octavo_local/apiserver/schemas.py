"""Schemas of built-in kinds, and the few things that every walk over a schema needs.

The schemas are those of the package kubernetes-validate (made from Kubernetes' own OpenAPI). They
are read once and brought into the form that custom resource definitions use: one `type`, and
`nullable` apart.
"""

import functools
import importlib.resources
import json
from typing import Any

from .resources import Resource

Schema = dict[str, Any]

KUBERNETES_VERSION = "1.37.0"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF_PREFIX = "#/$defs/"

_INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True}
# The published schemas lost these: a default that list keys need, and types that JSON cannot say.
_PORT_PROTOCOL_OWNERS = ("io.k8s.api.core.v1.ContainerPort", "io.k8s.api.core.v1.ServicePort")
_REPLACED: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {
        **_INT_OR_STRING,
        "format": "int-or-string",
    },
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {**_INT_OR_STRING, "format": "quantity"},
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "io.k8s.apimachinery.pkg.runtime.RawExtension": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    },
}


def _one_type(node: Any) -> Any:
    """`type: [string, null]` becomes `type: string, nullable: true`, all the way down."""
    if isinstance(node, list):
        return [_one_type(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _one_type(value) for key, value in node.items()}
    if isinstance(plain.get("type"), list):
        types = [name for name in plain["type"] if name != "null"]
        plain["nullable"] = "null" in plain["type"]
        plain["type"] = types[0]
    if isinstance(plain.get("enum"), list):
        plain["enum"] = [value for value in plain["enum"] if value is not None]
    return plain


@functools.cache
def definitions() -> dict[str, Schema]:
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    path = folder / f"v{KUBERNETES_VERSION}-local" / "_definitions.json"
    named: dict[str, Schema] = _one_type(json.loads(path.read_text())["$defs"])
    named.update(_REPLACED)
    for owner in _PORT_PROTOCOL_OWNERS:
        named[owner]["properties"]["protocol"]["default"] = "TCP"
    for schema in named.values():
        if not schema.keys() & {"properties", "type", "x-kubernetes-int-or-string"}:
            schema["x-kubernetes-preserve-unknown-fields"] = True  # any JSON at all
    return named


@functools.cache
def _names_by_kind() -> dict[tuple[str, str, str], str]:
    return {
        (kind["group"], kind["version"], kind["kind"]): name
        for name, schema in definitions().items()
        for kind in schema.get("x-kubernetes-group-version-kind", [])
    }


def definition_name(resource: Resource) -> str:
    """The name under which OpenAPI knows a built-in kind."""
    return _names_by_kind()[(resource.group, resource.version, resource.kind)]


def reference(name: str) -> Schema:
    return {"$ref": f"{_REF_PREFIX}{name}"}


def builtin_schema(resource: Resource) -> Schema:
    return definitions()[definition_name(resource)]


def resolve(schema: Schema) -> Schema:
    """Follows references; what stands beside a reference (list and map types) wins."""
    while (ref := schema.get("$ref")) is not None:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions()[ref.removeprefix(_REF_PREFIX)], **beside}
    return schema


def child(schema: Schema, key: str) -> Schema | None:
    """The schema of a field or map entry; None if the schema does not know it."""
    properties = schema.get("properties")
    if properties and key in properties:
        return resolve(properties[key])
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return resolve(additional)
    return None


def item(schema: Schema) -> Schema:
    items = schema.get("items")
    return resolve(items) if isinstance(items, dict) else {}


def list_keys(schema: Schema) -> list[str] | None:
    """The key fields of a list that is merged by key; None for every other list."""
    if schema.get("x-kubernetes-list-type") == "map":
        return list(schema.get("x-kubernetes-list-map-keys", []))
    return None


def is_set(schema: Schema) -> bool:
    return schema.get("x-kubernetes-list-type") == "set"


def is_atomic_map(schema: Schema) -> bool:
    return schema.get("x-kubernetes-map-type") == "atomic"


def keeps_unknown(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def list_key(schema: Schema, keys: list[str], entry: Any) -> dict[str, Any]:
    """The key of one entry; a field that is left out has its default (ports: protocol TCP)."""
    properties = item(schema).get("properties", {})
    found: dict[str, Any] = {}
    for key in keys:
        value = entry.get(key) if isinstance(entry, dict) else None
        if value is None:
            value = resolve(properties.get(key, {})).get("default")
        if value is not None:
            found[key] = value
    return found
