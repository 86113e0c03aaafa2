"""Server-side apply: merge what a manager wants, drop what it wants no more, rob nobody.

The method is that of Kubernetes' structured merge: ownership of fields decides, not a remembered
manifest.
"""

import copy
import json
from typing import Any

from .errors import Cause, apply_conflict
from .field_sets import (
    EMPTY,
    FieldSet,
    Path,
    fields_of,
    find_entry,
    readable,
    remove_path,
    value_at,
)
from .managers import APPLY, Manager, Ownership, read_owners, write_owners
from .resources import Object
from .schemas import (
    Schema,
    child,
    is_atomic_map,
    is_set,
    item,
    list_key,
    list_keys,
    resolve,
)

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def merged(live: Any, wanted: Any, schema: Schema) -> Any:
    """`wanted` laid over `live`: maps by field, keyed lists by entry, everything else whole."""
    schema = resolve(schema)
    if isinstance(live, dict) and isinstance(wanted, dict) and not is_atomic_map(schema):
        result = dict(live)
        for key, value in wanted.items():
            below = child(schema, key) or {}
            result[key] = merged(live[key], value, below) if key in live else copy.deepcopy(value)
        return result
    keys = list_keys(schema)
    if isinstance(live, list) and isinstance(wanted, list) and keys:
        return _merged_entries(live, wanted, schema, keys)
    if isinstance(live, list) and isinstance(wanted, list) and is_set(schema):
        return [*live, *(value for value in wanted if value not in live)]
    return copy.deepcopy(wanted)


def _merged_entries(
    live: list[Any], wanted: list[Any], schema: Schema, keys: list[str]
) -> list[Any]:
    """Live entries stay where they are; the places of wanted ones are taken in the wanted order.

    [x, a] with [new, a] applied becomes [x, new, a], and stays so however often it is applied.
    """
    pairs = [(find_entry(live, list_key(schema, keys, entry)), entry) for entry in wanted]
    found = [id(old) for old, _ in pairs if old is not None]
    merged_entries = iter(
        [
            copy.deepcopy(entry) if old is None else merged(old, entry, item(schema))
            for old, entry in pairs
        ]
    )
    result = [next(merged_entries) if id(entry) in found else entry for entry in live]
    return [*result, *merged_entries]


def apply(
    live: Object, wanted: Object, schema: Schema, manager: Manager, *, force: bool, now: str
) -> Object:
    """The object after the apply, with its `managedFields`; raises a 409 that lists every conflict.

    `wanted` is the pruned configuration (without defaults); `live` is not changed.
    """
    assert manager.operation == APPLY
    owners = read_owners(live["metadata"])
    wanted_fields = fields_of(wanted, schema)
    result: Object = merged(copy.deepcopy(live), wanted, schema)

    ceded = _ceded_to_kubectl(live, schema) if manager.name == "kubectl" else EMPTY
    taken = frozenset(
        path
        for path in wanted_fields
        if value_at(result, path) != value_at(live, path) and value_at(live, path) is not None
    )
    conflicts = [
        Cause(field=readable(path), message=_conflict_text(other))
        for other, ownership in owners.items()
        if not _same(other, manager)
        for path in sorted((taken & ownership.fields) - ceded)
    ]
    if conflicts and not force:
        raise apply_conflict(conflicts)

    before = _own_fields(owners, manager)
    for other, ownership in list(owners.items()):
        if _same(other, manager):
            del owners[other]
        elif taken & ownership.fields:
            owners[other] = Ownership(fields=ownership.fields - taken, time=ownership.time)
    held = frozenset[Path]().union(*(ownership.fields for ownership in owners.values()))
    removed: list[Path] = []
    for path in sorted(before - wanted_fields, key=len):
        inside_removed = any(path[: len(one)] == one for one in removed)
        if not inside_removed and not _is_key(path) and not _held(path, held | wanted_fields):
            remove_path(result, path)
            removed.append(path)
    unchanged = before == wanted_fields
    time = _own_time(live, manager) if unchanged and not taken else now
    owners[manager] = Ownership(fields=wanted_fields, time=time or now)
    write_owners(result["metadata"], owners)
    return result


def _ceded_to_kubectl(live: Object, schema: Schema) -> FieldSet:
    """What `kubectl apply` (client-side) wrote goes to `kubectl apply --server-side` unasked."""
    annotations = live["metadata"].get("annotations") or {}
    try:
        applied = json.loads(annotations.get(_LAST_APPLIED, "{}"))
    except ValueError:
        return EMPTY  # the annotation is the user's to spoil
    return fields_of(applied, schema) if isinstance(applied, dict) else EMPTY


def _conflict_text(other: Manager) -> str:
    how = f'conflict with "{other.name}"'
    if other.subresource:
        how += f' with subresource "{other.subresource}"'
    return f"{how} using {other.api_version}"


def _same(one: Manager, other: Manager) -> bool:
    return (one.name, one.operation, one.subresource) == (
        other.name,
        other.operation,
        other.subresource,
    )


def _own_fields(owners: dict[Manager, Ownership], manager: Manager) -> FieldSet:
    mine = [ownership.fields for other, ownership in owners.items() if _same(other, manager)]
    return frozenset[Path]().union(*mine)


def _own_time(live: Object, manager: Manager) -> str:
    owners = read_owners(live["metadata"])
    return next((one.time for other, one in owners.items() if _same(other, manager)), "")


def _held(path: Path, held: FieldSet) -> bool:
    return any(other[: len(path)] == path for other in held)


def _is_key(path: Path) -> bool:
    """Whether the field is part of its list entry's key: it goes with the entry or not at all."""
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])
