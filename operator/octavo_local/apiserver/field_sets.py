"""Which fields an object has, as sets of paths and in the `FieldsV1` form of `managedFields`.

A path is a tuple of steps: `f:name` a field, `k:{…}` the list entry with that key, `v:…` a member
of a set. A path of a list entry in the set means that the entry itself is owned, besides the fields
inside it.
"""

import json
from typing import Any

from .schemas import Schema, child, is_atomic_map, is_set, item, list_key, list_keys, resolve

Path = tuple[str, ...]
FieldSet = frozenset[Path]

EMPTY: FieldSet = frozenset()

# These belong to the server (or name the object), never to a manager.
_UNOWNED_METADATA = {
    "name",
    "namespace",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
}


def key_step(key: dict[str, Any]) -> str:
    return "k:" + json.dumps(key, sort_keys=True, separators=(",", ":"))


def value_step(value: Any) -> str:
    return "v:" + json.dumps(value, sort_keys=True, separators=(",", ":"))


def fields_of(obj: dict[str, Any], schema: Schema) -> FieldSet:
    """Every field of an object that a manager can own."""
    paths: set[Path] = set()
    for key, value in obj.items():
        if key in ("apiVersion", "kind"):
            continue
        if key == "metadata":
            value = {name: one for name, one in value.items() if name not in _UNOWNED_METADATA}
            if not value:
                continue
        _collect(value, child(schema, key) or {}, (f"f:{key}",), paths)
    return frozenset(paths)


def _collect(value: Any, schema: Schema, path: Path, paths: set[Path]) -> None:
    schema = resolve(schema)
    keys = list_keys(schema)
    if isinstance(value, dict) and value and not is_atomic_map(schema):
        for name, entry in value.items():
            _collect(entry, child(schema, name) or {}, (*path, f"f:{name}"), paths)
    elif isinstance(value, list) and value and keys:
        for entry in value:
            step = (*path, key_step(list_key(schema, keys, entry)))
            paths.add(step)
            for name, field in entry.items():
                _collect(field, child(item(schema), name) or {}, (*step, f"f:{name}"), paths)
    elif isinstance(value, list) and value and is_set(schema):
        paths.update((*path, value_step(entry)) for entry in value)
    else:
        paths.add(path)


def leaf_values(obj: dict[str, Any], schema: Schema) -> dict[Path, Any]:
    """The value at every path of `fields_of`; list entries themselves have none."""
    return {path: value_at(obj, path) for path in fields_of(obj, schema)}


def value_at(obj: Any, path: Path) -> Any:
    """The value at a path; True for a list entry or a member of a set, None if there is none."""
    for index, step in enumerate(path):
        last = index == len(path) - 1
        kind, _, text = step.partition(":")
        if kind == "f":
            obj = obj.get(text) if isinstance(obj, dict) else None
        elif kind == "k":
            obj = find_entry(obj, json.loads(text))
            if last:
                return True if obj is not None else None
        else:
            return True if isinstance(obj, list) and json.loads(text) in obj else None
        if obj is None:
            return None
    return obj


def find_entry(entries: Any, key: dict[str, Any]) -> dict[str, Any] | None:
    """The list entry with this key; a key field that the entry leaves out counts as equal."""
    if not isinstance(entries, list):
        return None
    for entry in entries:
        if isinstance(entry, dict) and all(entry.get(k, v) == v for k, v in key.items()):
            return entry
    return None


def remove_path(obj: Any, path: Path) -> None:
    """Takes the field, entry or member away, and the maps that become empty by it."""
    step, rest = path[0], path[1:]
    kind, _, text = step.partition(":")
    if kind == "f":
        if not isinstance(obj, dict) or text not in obj:
            return
        if not rest:
            del obj[text]
            return
        remove_path(obj[text], rest)
        if obj[text] in ({}, []):
            del obj[text]
    elif isinstance(obj, list) and kind == "k":
        entry = find_entry(obj, json.loads(text))
        if entry is None:
            return
        if rest:
            remove_path(entry, rest)
        else:
            obj.remove(entry)
    elif isinstance(obj, list) and json.loads(text) in obj:
        obj.remove(json.loads(text))


def to_fields_v1(fields: FieldSet) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path in sorted(fields):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return root


def from_fields_v1(node: dict[str, Any], path: Path = ()) -> FieldSet:
    paths: set[Path] = set()
    for step, below in node.items():
        if step == ".":
            # A map's own entry says nothing that its fields do not; a list entry's does.
            if path and path[-1].startswith("k:"):
                paths.add(path)
        elif below:
            paths |= from_fields_v1(below, (*path, step))
        else:
            paths.add((*path, step))
    return frozenset(paths)


def readable(path: Path) -> str:
    """`.spec.template.spec.containers[name="engine"].image`, as conflicts name a field."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            inside = ",".join(f"{k}={json.dumps(v)}" for k, v in json.loads(rest).items())
            text += f"[{inside}]"
        else:
            text += f"[={rest}]"
    return text
