"""What a schema does to an object before it is judged: drop unknown fields, fill defaults."""

import copy
from collections.abc import Iterator
from typing import Any

from .schemas import Schema, child, item, keeps_unknown, resolve


def without_nulls(value: Any) -> Any:
    """Built-in kinds know no null: a field that is null is a field left out."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_nulls(entry) for entry in value]
    return value


def unknown_fields(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Paths of the fields that the schema does not know, as `spec.containers[0].imgae`."""
    schema = resolve(schema)
    if isinstance(value, dict):
        for key, entry in value.items():
            below = f"{path}.{key}" if path else key
            known = child(schema, key)
            if known is not None:
                yield from unknown_fields(entry, known, below)
            elif not _opaque(schema):
                yield below
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from unknown_fields(entry, item(schema), f"{path}[{index}]")


def _opaque(schema: Schema) -> bool:
    """True where fields without a schema of their own are allowed."""
    if keeps_unknown(schema) or schema.get("additionalProperties") is True:
        return True
    # Scalars that JSON wrote as objects are a type error, which validation reports better.
    return schema.get("type") != "object" and "properties" not in schema


def pruned(value: Any, schema: Schema) -> Any:
    """A copy without the fields that the schema does not know."""
    schema = resolve(schema)
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for key, entry in value.items():
            known = child(schema, key)
            if known is not None:
                kept[key] = pruned(entry, known)
            elif _opaque(schema):
                kept[key] = copy.deepcopy(entry)
        return kept
    if isinstance(value, list):
        return [pruned(entry, item(schema)) for entry in value]
    return value


def fill_defaults(value: Any, schema: Schema) -> None:
    """Adds the schema's defaults to an object of a custom resource, in place.

    A null is replaced by the default if the field is not nullable, and dropped if there is none to
    be had.
    """
    schema = resolve(schema)
    if isinstance(value, dict):
        for key, raw in schema.get("properties", {}).items():
            known = resolve(raw)
            is_null = key in value and value[key] is None and not known.get("nullable")
            if "default" in known and (is_null or key not in value):
                value[key] = copy.deepcopy(known["default"])
        for key, entry in value.items():
            known_child = child(schema, key)
            if known_child is not None:
                fill_defaults(entry, known_child)
    elif isinstance(value, list):
        for entry in value:
            fill_defaults(entry, item(schema))
