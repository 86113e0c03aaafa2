"""OpenAPI v3, a document for each group and version: for `kubectl explain`, `apply`, `diff`."""

import functools
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from .errors import no_such_path
from .kinds import Kind, Kinds
from .resources import Object, Resource
from .schemas import KUBERNETES_VERSION, Schema, definition_name, definitions

_REF_BEFORE = "#/$defs/"
_REF_AFTER = "#/components/schemas/"


def _prefix(resource: Resource) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def index(kinds: Kinds) -> Object:
    """Where the documents are; the hash changes with their content, since clients keep them."""
    found: dict[str, list[Kind]] = {}
    for kind in kinds.served():
        found.setdefault(_prefix(kind.resource), []).append(kind)
    return {
        "paths": {
            prefix: {"serverRelativeURL": f"/openapi/v3/{prefix}?hash={_hash(members)}"}
            for prefix, members in sorted(found.items())
        }
    }


def _hash(kinds: Iterable[Kind]) -> str:
    digest = hashlib.sha256()
    for kind in kinds:
        digest.update(kind.resource.kind.encode())
        if kind.resource.custom:
            digest.update(json.dumps(kind.schema, sort_keys=True).encode())
    return digest.hexdigest()[:32].upper()


def document(kinds: Kinds, prefix: str) -> Object:
    members = [kind for kind in kinds.served() if _prefix(kind.resource) == prefix]
    if not members:
        raise no_such_path()
    schemas: dict[str, Schema] = {}
    paths: dict[str, Object] = {}
    for kind in members:
        name = _add_schema(kind, schemas)
        paths.update(_paths(kind, name))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"v{KUBERNETES_VERSION}"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _add_schema(kind: Kind, schemas: dict[str, Schema]) -> str:
    resource = kind.resource
    if not resource.custom:
        name = definition_name(resource)
        _add_definition(name, schemas)
        return name
    name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
    schema = _published(kind.schema)
    schemas[name] = {**schema, "x-kubernetes-group-version-kind": [_identity(resource)]}
    for below in _references(schema):
        _add_definition(below, schemas)
    return name


def _add_definition(name: str, schemas: dict[str, Schema]) -> None:
    if name in schemas:
        return
    schemas[name] = _published_definition(name)
    for below in _references(schemas[name]):
        _add_definition(below, schemas)


@functools.cache
def _published_definition(name: str) -> Schema:
    published: Schema = _published(definitions()[name])
    return published


def _published(node: Any) -> Any:
    """In OpenAPI's own terms: references to components, `type` beside a reference in `allOf`."""
    if isinstance(node, list):
        return [_published(one) for one in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):  # a property may have that name too
        beside = {k: _published(v) for k, v in node.items() if k not in ("$ref", "type")}
        target = node["$ref"].replace(_REF_BEFORE, _REF_AFTER)
        return {**beside, "allOf": [{"$ref": target}]}
    published = {
        key: _published(value)
        for key, value in node.items()
        if not isinstance(value, bool) or key != "nullable"
    }
    if published.get("x-kubernetes-int-or-string") and "type" not in published:
        published["oneOf"] = [{"type": "integer"}, {"type": "string"}]
    return published


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, list):
        for one in node:
            yield from _references(one)
    elif isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(_REF_AFTER)
        for value in node.values():
            yield from _references(value)


def _identity(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def _paths(kind: Kind, schema_name: str) -> dict[str, Object]:
    """The paths that clients look up: for the kind's schema and for the patch's parameters."""
    resource = kind.resource
    content = {"application/json": {"schema": {"$ref": f"{_REF_AFTER}{schema_name}"}}}

    def operation(action: str) -> Object:
        return {
            "operationId": f"{action}{resource.kind}",
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _identity(resource),
            "parameters": _PARAMETERS,
            "responses": {"200": {"description": "OK", "content": content}},
        }

    place = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"/{_prefix(resource)}{place}/{resource.plural}"
    if resource.verbs == ("create",):
        return {collection: {"post": operation("post")}}
    patch = {
        **operation("patch"),
        "requestBody": {"content": {"application/apply-patch+yaml": {"schema": {}}}},
    }
    return {
        collection: {"post": operation("post")},
        collection + "/{name}": {"get": operation("get"), "patch": patch},
    }
