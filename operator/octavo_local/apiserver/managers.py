"""Who owns which fields: the `managedFields` of an object, kept current by every write."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .field_sets import (
    EMPTY,
    FieldSet,
    fields_of,
    from_fields_v1,
    leaf_values,
    to_fields_v1,
)
from .resources import Object
from .schemas import Schema

APPLY = "Apply"
UPDATE = "Update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """Identity of an entry of `managedFields`."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What a manager owns, and since when."""

    fields: FieldSet
    time: str


Owners = Mapping[Manager, Ownership]


def read_owners(metadata: Object) -> dict[Manager, Ownership]:
    owners: dict[Manager, Ownership] = {}
    for entry in metadata.get("managedFields") or []:
        if not entry:
            continue  # `[{}]` is how clients ask for a clean slate
        manager = Manager(
            name=entry.get("manager", ""),
            operation=entry.get("operation", UPDATE),
            api_version=entry.get("apiVersion", ""),
            subresource=entry.get("subresource", ""),
        )
        owners[manager] = Ownership(
            fields=from_fields_v1(entry.get("fieldsV1") or {}), time=entry.get("time", "")
        )
    return owners


def write_owners(metadata: Object, owners: Owners) -> None:
    """Writes the entries that own something, those of Apply first, as the real server does."""
    entries: list[dict[str, Any]] = []
    for manager, ownership in owners.items():
        if not ownership.fields:
            continue
        entry: dict[str, Any] = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": ownership.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_fields_v1(ownership.fields),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    # A total order: writers that change nothing must not change the list by taking turns.
    entries.sort(
        key=lambda entry: (
            entry["operation"],
            entry["time"],
            entry["manager"],
            entry.get("subresource", ""),
            entry["apiVersion"],
        )
    )
    if entries:
        metadata["managedFields"] = entries
    else:
        metadata.pop("managedFields", None)


def changed_fields(old: Object, new: Object, schema: Schema) -> tuple[FieldSet, FieldSet]:
    """(fields that are new or have another value, fields that are gone)."""
    before, after = leaf_values(old, schema), leaf_values(new, schema)
    changed = frozenset(path for path, value in after.items() if before.get(path) != value)
    return changed, frozenset(before.keys() - after.keys())


def record_update(
    old: Object | None, new: Object, schema: Schema, manager: Manager, now: str
) -> None:
    """Gives what a create, update or patch changed to its manager, and takes it from the others.

    `new` holds the `managedFields` to start from, which a client may have edited.
    """
    owners = read_owners(new["metadata"])
    if old is None:
        changed, gone = fields_of(new, schema), EMPTY
    else:
        changed, gone = changed_fields(old, new, schema)
    if not changed and not gone:
        write_owners(new["metadata"], owners)
        return
    for other, ownership in list(owners.items()):
        taken = gone | (changed if other != manager else EMPTY)
        owners[other] = Ownership(fields=ownership.fields - taken, time=ownership.time)
    mine = owners.get(manager, Ownership(fields=EMPTY, time=now))
    if changed:
        owners[manager] = Ownership(fields=mine.fields | changed, time=now)
    write_owners(new["metadata"], owners)
