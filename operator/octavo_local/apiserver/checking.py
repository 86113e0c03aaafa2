"""Checks values against a schema and reports every fault in the words of the real API server."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from .errors import Cause
from .schemas import Schema, child, item, list_key, list_keys, resolve

MAX_CAUSES = 16

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|m|u|n|k|[KMGTPE]i?|)")
_INT_BITS = {"int32": 31, "int64": 63}


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for name in ("object", "array", "string", "integer", "number"):
        if isinstance(value, _JSON_TYPES[name]):
            return name
    return type(value).__name__


def is_quantity(text: str) -> bool:
    return _QUANTITY.fullmatch(text) is not None


def shown(value: Any) -> str:
    """A value as the messages of Kubernetes show it: composite values by their type only."""
    if isinstance(value, (dict, list)):
        return f'"{json_type(value)}"'
    return json.dumps(value)


def _invalid(path: str, value: Any, detail: str) -> Cause:
    return Cause(field=path, message=f"Invalid value: {shown(value)}: {detail}")


def type_fault(path: str, value: Any, expected: str) -> Cause:
    found = json_type(value)
    return Cause(
        field=path,
        reason="FieldValueTypeInvalid",
        message=f'Invalid value: "{found}": {path} in body must be of type {expected}: "{found}"',
    )


def _has_type(value: Any, expected: str) -> bool:
    if isinstance(value, bool):
        return expected == "boolean"
    if expected == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _JSON_TYPES[expected])


def check(value: Any, schema: Schema, path: str = "") -> Iterator[Cause]:
    """Every fault of `value`; faults of a field come before those of the fields inside it."""
    schema = resolve(schema)
    if value is None:
        if not schema.get("nullable") and "type" in schema:
            yield type_fault(path, value, schema["type"])
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str, float)):
            yield type_fault(path, value, "integer,string")
            return
        if schema.get("format") == "quantity" and not is_quantity(str(value)):
            yield _invalid(path, value, "must be a quantity, such as 500m, 2 or 1.5Gi")
    elif (expected := schema.get("type")) is not None and not _has_type(value, expected):
        yield type_fault(path, value, expected)
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(choice) for choice in schema["enum"])
        yield Cause(
            field=path,
            reason="FieldValueNotSupported",
            message=f"Unsupported value: {shown(value)}: supported values: {allowed}",
        )
    if isinstance(value, str):
        yield from _check_string(value, schema, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _check_number(value, schema, path)
    elif isinstance(value, list):
        yield from _check_list(value, schema, path)
    elif isinstance(value, dict):
        yield from _check_object(value, schema, path)
    yield from _check_combinations(value, schema, path)


def _check_string(value: str, schema: Schema, path: str) -> Iterator[Cause]:
    if (least := schema.get("minLength")) is not None and len(value) < least:
        yield _invalid(path, value, f"{path} in body should be at least {least} chars long")
    if (most := schema.get("maxLength")) is not None and len(value) > most:
        yield Cause(
            field=path,
            reason="FieldValueTooLong",
            message=f"Too long: may not be more than {most} bytes",
        )
    pattern = schema.get("pattern")
    if pattern is not None and not compiled(pattern).search(value):
        yield _invalid(path, value, f"{path} in body should match '{pattern}'")


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _check_number(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        open_end = bool(schema.get("exclusiveMinimum"))
        if value < least or (open_end and value == least):
            words = "greater than" if open_end else "greater than or equal to"
            yield _invalid(path, value, f"{path} in body should be {words} {least}")
    if most is not None:
        open_end = bool(schema.get("exclusiveMaximum"))
        if value > most or (open_end and value == most):
            words = "less than" if open_end else "less than or equal to"
            yield _invalid(path, value, f"{path} in body should be {words} {most}")
    step = schema.get("multipleOf")
    if step is not None and value % step:
        yield _invalid(path, value, f"{path} in body should be a multiple of {step}")
    bits = _INT_BITS.get(schema.get("format", ""))
    if bits is not None and not -(1 << bits) <= value < (1 << bits):
        yield _invalid(path, value, f"{path} in body must be of type {schema['format']}")


def _check_list(value: list[Any], schema: Schema, path: str) -> Iterator[Cause]:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and len(value) < least:
        yield _invalid(path, value, f"{path} in body should have at least {least} items")
    if most is not None and len(value) > most:
        yield Cause(
            field=path,
            reason="FieldValueTooMany",
            message=f"Too many: {len(value)}: must have at most {most} items",
        )
    for index, entry in enumerate(value):
        yield from check(entry, item(schema), f"{path}[{index}]")
    keys = list_keys(schema)
    identities = [
        json.dumps(list_key(schema, keys, entry) if keys else entry, sort_keys=True)
        for entry in value
        if keys or schema.get("x-kubernetes-list-type") == "set"
    ]
    for index, identity in enumerate(identities):
        if identity in identities[:index]:
            yield Cause(
                field=f"{path}[{index}]",
                reason="FieldValueDuplicate",
                message=f"Duplicate value: {identity}",
            )


def _check_object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[Cause]:
    for key in schema.get("required", []):
        if value.get(key) is None:
            below = f"{path}.{key}" if path else key
            yield Cause(field=below, reason="FieldValueRequired", message="Required value")
    most = schema.get("maxProperties")
    if most is not None and len(value) > most:
        yield Cause(
            field=path,
            reason="FieldValueTooMany",
            message=f"Too many: {len(value)}: must have at most {most} items",
        )
    least = schema.get("minProperties")
    if least is not None and len(value) < least:
        yield _invalid(path, value, f"{path} in body should have at least {least} properties")
    required = set(schema.get("required", []))
    for key, entry in value.items():
        known = child(schema, key)
        if known is not None and not (entry is None and key in required):
            yield from check(entry, known, f"{path}.{key}" if path else key)


def _check_combinations(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    def fits(option: Schema) -> bool:
        return next(check(value, option, path), None) is None

    for part in schema.get("allOf", []):
        yield from check(value, part, path)
    if "anyOf" in schema and not any(map(fits, schema["anyOf"])):
        yield _invalid(path, value, f"{path} in body must validate at least one schema (anyOf)")
    if "oneOf" in schema and sum(map(fits, schema["oneOf"])) != 1:
        yield _invalid(path, value, f"{path} in body must validate one and only one schema (oneOf)")
    if "not" in schema and fits(schema["not"]):
        yield _invalid(path, value, f"{path} in body must not validate the schema (not)")
