"""Reading Kubernetes objects: the few questions that every controller asks."""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

Object = dict[str, Any]

# No vowels and no digits that look like letters: names made of it spell nothing.
_NAME_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


def name_of(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"]["name"])


def namespace_of(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"].get("namespace") or "")


def key_of(thing: Mapping[str, Any]) -> tuple[str, str]:
    return namespace_of(thing), name_of(thing)


def labels_of(thing: Mapping[str, Any]) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}


def annotations_of(thing: Mapping[str, Any]) -> Mapping[str, str]:
    return thing["metadata"].get("annotations") or {}


def is_deleting(thing: Mapping[str, Any]) -> bool:
    return thing["metadata"].get("deletionTimestamp") is not None


def controller_uid(thing: Mapping[str, Any]) -> str | None:
    for owner in thing["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def make_controller_reference(owner: Mapping[str, Any], api_version: str, kind: str) -> Object:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name_of(owner),
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition_of(thing: Mapping[str, Any], condition_type: str) -> Mapping[str, Any]:
    """A condition of the object's status; an empty mapping when it is not there."""
    for condition in (thing.get("status") or {}).get("conditions") or ():
        if condition["type"] == condition_type:
            return dict(condition)
    return {}


def is_true(thing: Mapping[str, Any], condition_type: str) -> bool:
    return condition_of(thing, condition_type).get("status") == "True"


def matches_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector against labels; an empty selector matches everything, None nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        matches_expression(expression, labels)
        for expression in selector.get("matchExpressions") or ()
    )


def matches_expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator:
            try:
                difference = int(labels[key]) - int(values[0])
            except (KeyError, ValueError, IndexError):
                return False
            return difference > 0 if operator == "Gt" else difference < 0
    return False


def format_time(moment: float) -> str:
    """Seconds since the epoch as the API writes them: 2026-01-31T12:00:00Z."""
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def stable_suffix(value: object, length: int = 10) -> str:
    """A name suffix that depends on the value alone, however its keys are ordered."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return "".join(_NAME_ALPHABET[byte % len(_NAME_ALPHABET)] for byte in digest[:length])


def random_suffix(length: int = 5, choose: Callable[[str], str] = secrets.choice) -> str:
    """What a generated name ends with."""
    return "".join(choose(_NAME_ALPHABET) for _ in range(length))


def merge_conditions(
    old: list[Object], new: list[Object], now: float, *, stamp_updates: bool = False
) -> list[Object]:
    """`new` with lastTransitionTime kept where the status is what it was.

    `stamp_updates` also keeps a lastUpdateTime, which moves when reason or message change.
    """
    before = {condition["type"]: condition for condition in old}
    merged = []
    for condition in new:
        previous = before.get(condition["type"], {})
        same_status = previous.get("status") == condition["status"]
        stamped = {
            **condition,
            "lastTransitionTime": previous["lastTransitionTime"]
            if same_status and previous.get("lastTransitionTime")
            else format_time(now),
        }
        if stamp_updates and "lastUpdateTime" not in condition:
            same = same_status and all(
                previous.get(field) == condition.get(field) for field in ("reason", "message")
            )
            stamped["lastUpdateTime"] = (
                previous["lastUpdateTime"]
                if same and previous.get("lastUpdateTime")
                else format_time(now)
            )
        merged.append(stamped)
    return merged
