"""The three kinds of PATCH: JSON patch, merge patch and strategic merge patch (built-in kinds)."""

import copy
from typing import Any

import jsonpatch

from .errors import ApiError, bad_request
from .resources import Object
from .schemas import Schema, child, item, resolve

_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"
_DIRECTIVE = "$patch"


def json_patch(obj: Object, operations: Any) -> Object:
    """RFC 6902; a test that fails or a path that is not there is a 422."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    try:
        patched = jsonpatch.apply_patch(obj, operations, in_place=False)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from error
    if not isinstance(patched, dict):
        raise bad_request("the JSON patch leaves no object")
    return patched


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_patch(target: Any, patch: Any, schema: Schema) -> Any:
    """Merge patch that knows, from the schema, which lists are merged by key or as sets."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    schema = resolve(schema)
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = key.removeprefix(_DELETE_PRIMITIVES)
            merged[name] = [entry for entry in merged.get(name, []) if entry not in value]
        elif key.startswith(_ORDER) or key in (_RETAIN, _DIRECTIVE):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _patched_field(merged.get(key), value, child(schema, key) or {})
    for key, order in patch.items():
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            merged[name] = _in_order(merged.get(name, []), order, child(schema, name) or {})
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in patch[_RETAIN]}
    return merged


def _merges(schema: Schema) -> bool:
    return "merge" in schema.get("x-kubernetes-patch-strategy", "").split(",")


def _patched_field(current: Any, value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        return strategic_patch(current, value, schema)
    if not isinstance(value, list) or not _merges(schema):
        return copy.deepcopy(value)
    entries = list(current or [])
    key = schema.get("x-kubernetes-patch-merge-key")
    if key is None:
        return entries + [one for one in value if one not in entries]
    if any(isinstance(one, dict) and one.get(_DIRECTIVE) == "replace" for one in value):
        return [one for one in value if _DIRECTIVE not in one]
    for one in value:
        if not isinstance(one, dict) or key not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {key}")
        place = next((i for i, old in enumerate(entries) if old.get(key) == one[key]), None)
        if one.get(_DIRECTIVE) == "delete":
            entries = [old for old in entries if old.get(key) != one[key]]
        elif place is None:
            entries.append(strategic_patch({}, one, item(schema)))
        else:
            entries[place] = strategic_patch(entries[place], one, item(schema))
    return entries


def _in_order(entries: list[Any], order: list[Any], schema: Schema) -> list[Any]:
    """Entries that `order` names come as it says; the others keep their places after them."""
    key = schema.get("x-kubernetes-patch-merge-key")

    def identity(entry: Any) -> Any:
        return entry.get(key) if key and isinstance(entry, dict) else entry

    ranks = {identity(entry): rank for rank, entry in enumerate(order)}
    return sorted(entries, key=lambda entry: ranks.get(identity(entry), len(ranks)))
