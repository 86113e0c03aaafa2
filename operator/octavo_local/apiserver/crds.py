"""Custom resource definitions: what one must look like, and the kinds that it brings."""

from collections.abc import Iterator

from .cel import InvalidRule, check_rule
from .errors import Cause
from .jsonpath import InvalidPath, parse_path
from .kinds import Kind, ScalePaths
from .resources import Object, Resource
from .schemas import OBJECT_META, Schema, reference

_SUPPORTED_SUBRESOURCES = {"status", "scale"}


def kinds_of(crd: Object) -> tuple[tuple[Kind, ...], Kind]:
    """The served kinds of a checked definition, and the one whose version is stored."""
    spec = crd["spec"]
    kinds = {version["name"]: _kind(spec, version) for version in spec["versions"]}
    served = tuple(kinds[version["name"]] for version in spec["versions"] if version["served"])
    stored = next(version["name"] for version in spec["versions"] if version["storage"])
    return served, kinds[stored]


def _kind(spec: Object, version: Object) -> Kind:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    return Kind(
        resource=Resource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names.get("singular") or names["kind"].lower(),
            short_names=tuple(names.get("shortNames") or ()),
            namespaced=spec["scope"] == "Namespaced",
            subresources=frozenset(subresources),
            categories=tuple(names.get("categories") or ()),
            custom=True,
        ),
        schema=_complete(version["schema"]["openAPIV3Schema"]),
        columns=tuple(version.get("additionalPrinterColumns") or _AGE_ONLY),
        scale=None
        if scale is None
        else ScalePaths(
            spec_replicas=scale["specReplicasPath"],
            status_replicas=scale["statusReplicasPath"],
            selector=scale.get("labelSelectorPath"),
        ),
    )


_AGE_ONLY = ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)


def _complete(schema: Schema) -> Schema:
    """Every object has a version, a kind and metadata, whatever the author wrote about them."""
    text: Schema = {"type": "string"}
    properties = {
        **schema.get("properties", {}),
        "apiVersion": text,
        "kind": text,
        "metadata": {**reference(OBJECT_META), "type": "object"},
    }
    return {**schema, "properties": properties}


def established(crd: Object, now: str) -> Object:
    """The status of a definition whose kinds are served."""
    spec = crd["spec"]
    before = {one["type"]: one for one in (crd.get("status") or {}).get("conditions") or []}

    def condition(type_: str, reason: str, message: str) -> Object:
        return before.get(type_) or {
            "type": type_,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }

    names = {**spec["names"]}
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    return {
        "acceptedNames": names,
        "storedVersions": [one["name"] for one in spec["versions"] if one["storage"]],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition(
                "Established", "InitialNamesAccepted", "the initial names have been accepted"
            ),
        ],
    }


def check_definition(crd: Object) -> Iterator[Cause]:
    """Faults of a definition beyond its own schema."""
    spec = crd["spec"]
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if crd["metadata"].get("name") != expected:
        yield Cause(field="metadata.name", message=f'Invalid value: must be "{expected}"')
    if spec["scope"] not in ("Namespaced", "Cluster"):
        yield Cause(
            field="spec.scope",
            reason="FieldValueNotSupported",
            message=f'Unsupported value: "{spec["scope"]}": '
            'supported values: "Cluster", "Namespaced"',
        )
    if sum(bool(version["storage"]) for version in spec["versions"]) != 1:
        yield Cause(
            field="spec.versions",
            message="Invalid value: must have exactly one version marked as storage version",
        )
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        yield Cause(
            field="spec.conversion.strategy",
            message="Invalid value: local mode supports the strategy None only",
        )
    for index, version in enumerate(spec["versions"]):
        path = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            yield Cause(
                field=f"{path}.schema.openAPIV3Schema",
                reason="FieldValueRequired",
                message="Required value: schemas are required",
            )
        else:
            yield from _check_schema(schema, f"{path}.schema.openAPIV3Schema")
        yield from _check_paths(version, path)


def _check_schema(schema: Schema, path: str) -> Iterator[Cause]:
    """Structural: every node says its type, and rules compile."""
    if not (
        schema.get("type")
        or schema.get("x-kubernetes-int-or-string")
        or schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        yield Cause(
            field=f"{path}.type",
            reason="FieldValueRequired",
            message="Required value: must not be empty for specified object fields",
        )
    if "$ref" in schema:
        yield Cause(field=f"{path}.$ref", message="Forbidden: $ref is not supported")
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        for name in ("rule", "messageExpression"):
            try:
                if name in rule:
                    check_rule(rule[name])
            except InvalidRule as error:
                yield Cause(
                    field=f"{path}.x-kubernetes-validations[{index}].{name}",
                    message=f"Invalid value: {error}",
                )
    for name, below in (schema.get("properties") or {}).items():
        if path.endswith("openAPIV3Schema") and name in ("apiVersion", "kind", "metadata"):
            continue
        yield from _check_schema(below, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        yield from _check_schema(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _check_schema(schema["additionalProperties"], f"{path}.additionalProperties")


def _check_paths(version: Object, path: str) -> Iterator[Cause]:
    columns = version.get("additionalPrinterColumns") or []
    named = {
        f"{path}.additionalPrinterColumns[{index}].jsonPath": column.get("jsonPath", "")
        for index, column in enumerate(columns)
    }
    subresources = version.get("subresources") or {}
    for name, value in (subresources.get("scale") or {}).items():
        named[f"{path}.subresources.scale.{name}"] = value
    for field, text in named.items():
        try:
            parse_path(text)
        except InvalidPath as error:
            yield Cause(field=field, message=f"Invalid value: {error}")
    for name in set(subresources) - _SUPPORTED_SUBRESOURCES:
        yield Cause(field=f"{path}.subresources.{name}", message="Invalid value: not supported")
