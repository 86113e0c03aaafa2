"""Deployment -> ReplicaSets: one per pod template, rolled over without losing availability."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Final

from octavo_local.objects import (
    Object,
    annotations_of,
    condition_of,
    format_time,
    is_deleting,
    make_controller_reference,
    merge_conditions,
    name_of,
    namespace_of,
    parse_time,
    stable_suffix,
)

REVISION: Final = "deployment.kubernetes.io/revision"
TEMPLATE_HASH: Final = "pod-template-hash"
DEFAULT_PROGRESS_DEADLINE_S: Final = 600
# Annotations that describe the Deployment itself, not what it rolls out.
_OWN_ANNOTATIONS: Final = frozenset({REVISION, "kubectl.kubernetes.io/last-applied-configuration"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """What to do now; the loop comes back when a ReplicaSet or pod changes, or after the wait."""

    create: Object | None
    scale: Mapping[str, int]  # ReplicaSet name -> replicas
    delete: tuple[str, ...]  # old, empty ReplicaSets beyond the history limit
    revision: int  # to note on the Deployment and on the ReplicaSet of its template
    current: str  # name of that ReplicaSet
    status: Object
    check_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    wanted: int
    max_total: int
    min_available: int


def decide_deployment(
    deployment: Mapping[str, Any],
    replica_sets: Sequence[Object],
    num_old_pods: int,
    now: float,
) -> DeploymentPlan:
    """What to do for a Deployment.

    `replica_sets` are those it controls; `num_old_pods` counts pods of former templates that still
    exist, those on their way out included (Recreate waits for them).
    """
    spec = deployment["spec"]
    template_hash = template_hash_of(deployment)
    current_name = f"{name_of(deployment)[:52]}-{template_hash}"
    ordered = sorted(replica_sets, key=revision_of)
    current = next((item for item in ordered if _noted_hash(item) == template_hash), None)
    old = [item for item in ordered if item is not current]
    newest_old = max(map(revision_of, old), default=0)
    revision = max(newest_old + 1, revision_of(current) if current else 0)
    bounds = _bounds(spec)
    paused = bool(spec.get("paused"))

    create, scale = None, {}
    if current is None and not paused and not is_deleting(deployment):
        create = _make_replica_set(deployment, current_name, template_hash, revision)
        create["spec"]["replicas"] = _first_size(spec, bounds, old, num_old_pods)
        if _is_recreate(spec):
            scale = {name_of(item): 0 for item in old if _size(item)}
    elif not is_deleting(deployment):
        scale = _rescale(spec, bounds, current, old, num_old_pods)

    status = _make_status(deployment, current, ordered, bounds, created=create, now=now)
    return DeploymentPlan(
        create=create,
        scale=scale,
        delete=_expired(spec, old),
        revision=revision,
        current=name_of(current) if current else current_name,
        status=status,
        check_after_s=_seconds_to_deadline(spec, status, now),
    )


def template_hash_of(deployment: Mapping[str, Any]) -> str:
    return stable_suffix(deployment["spec"]["template"])


def revision_of(replica_set: Mapping[str, Any]) -> int:
    text = annotations_of(replica_set).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _noted_hash(replica_set: Mapping[str, Any]) -> str | None:
    labels = replica_set["metadata"].get("labels") or {}
    value = labels.get(TEMPLATE_HASH)
    return str(value) if value else None


def _is_recreate(spec: Mapping[str, Any]) -> bool:
    return bool((spec.get("strategy") or {}).get("type") == "Recreate")


def _bounds(spec: Mapping[str, Any]) -> _Bounds:
    wanted = int(spec.get("replicas", 1))
    if _is_recreate(spec):
        return _Bounds(wanted=wanted, max_total=wanted, min_available=wanted)
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = _resolve(rolling.get("maxSurge", "25%"), wanted, round_up=True)
    unavailable = _resolve(rolling.get("maxUnavailable", "25%"), wanted, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1  # percentages may both round to nothing; then nothing could ever move
    return _Bounds(
        wanted=wanted,
        max_total=wanted + surge,
        min_available=max(0, wanted - min(unavailable, wanted)),
    )


def _resolve(value: int | str, wanted: int, *, round_up: bool) -> int:
    if isinstance(value, str) and value.endswith("%"):
        share = int(value[:-1]) * wanted / 100
        return ceil(share) if round_up else floor(share)
    return int(value)


def _size(replica_set: Mapping[str, Any]) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _count(replica_set: Mapping[str, Any] | None, field: str) -> int:
    return int(((replica_set or {}).get("status") or {}).get(field) or 0)


def _first_size(
    spec: Mapping[str, Any], bounds: _Bounds, old: Sequence[Object], num_old_pods: int
) -> int:
    if _is_recreate(spec):
        return 0 if num_old_pods or any(map(_size, old)) else bounds.wanted
    return max(0, min(bounds.wanted, bounds.max_total - sum(map(_size, old))))


def _rescale(
    spec: Mapping[str, Any],
    bounds: _Bounds,
    current: Object | None,
    old: Sequence[Object],
    num_old_pods: int,
) -> dict[str, int]:
    active_old = [item for item in old if _size(item)]
    if spec.get("paused") or current is None:
        # A paused Deployment still follows `kubectl scale`, as long as it is clear which one means.
        active = [*([current] if current is not None and _size(current) else []), *active_old]
        only = active[0] if len(active) == 1 else current if not active else None
        if only is None or _size(only) == bounds.wanted:
            return {}
        return {name_of(only): bounds.wanted}
    if _is_recreate(spec):
        if active_old:
            return {name_of(item): 0 for item in active_old}
        if num_old_pods or _size(current) == bounds.wanted:
            return {}
        return {name_of(current): bounds.wanted}
    total = _size(current) + sum(map(_size, active_old))
    if _size(current) > bounds.wanted:
        return {name_of(current): bounds.wanted}
    if _size(current) < bounds.wanted and total < bounds.max_total:
        room = min(bounds.max_total - total, bounds.wanted - _size(current))
        return {name_of(current): _size(current) + room}
    return _shrink_old(bounds, current, active_old, total)


def _shrink_old(
    bounds: _Bounds, current: Object, active_old: Sequence[Object], total: int
) -> dict[str, int]:
    """Take old pods away: those that serve nobody first, then as many as availability allows.

    Worked example: 4 wanted, at most 5, at least 3 available; old 4 (3 available), new 1 (0
    available): 5 - 3 - 1 = 1 may go, and it is the old one that is not available.
    """
    new_unavailable = max(0, _size(current) - _count(current, "availableReplicas"))
    budget = total - bounds.min_available - new_unavailable
    if budget <= 0 or not active_old:
        return {}
    sizes = {name_of(item): _size(item) for item in active_old}
    for item in active_old:
        broken = max(0, _size(item) - _count(item, "availableReplicas"))
        gone = min(broken, budget)
        sizes[name_of(item)] -= gone
        budget -= gone
    available = sum(_count(item, "availableReplicas") for item in (current, *active_old))
    spare = min(budget, available - bounds.min_available)
    for item in active_old:
        gone = max(0, min(sizes[name_of(item)], spare))
        sizes[name_of(item)] -= gone
        spare -= gone
    return {
        name_of(item): sizes[name_of(item)]
        for item in active_old
        if sizes[name_of(item)] != _size(item)
    }


def _expired(spec: Mapping[str, Any], old: Sequence[Object]) -> tuple[str, ...]:
    limit = int(spec.get("revisionHistoryLimit", 10))
    empty = [item for item in old if not _size(item) and not _count(item, "replicas")]
    return tuple(name_of(item) for item in empty[: max(0, len(empty) - limit)])


def _make_replica_set(
    deployment: Mapping[str, Any], name: str, template_hash: str, revision: int
) -> Object:
    spec = deployment["spec"]
    template = deepcopy(spec["template"])
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), TEMPLATE_HASH: template_hash}
    selector = deepcopy(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH: template_hash}
    annotations = {
        key: value
        for key, value in annotations_of(deployment).items()
        if key not in _OWN_ANNOTATIONS
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": namespace_of(deployment),
            "labels": dict(metadata["labels"]),
            "annotations": {**annotations, REVISION: str(revision)},
            "ownerReferences": [make_controller_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {
            "replicas": 0,
            "minReadySeconds": int(spec.get("minReadySeconds") or 0),
            "selector": selector,
            "template": template,
        },
    }


def _make_status(
    deployment: Mapping[str, Any],
    current: Object | None,
    replica_sets: Sequence[Object],
    bounds: _Bounds,
    *,
    created: Object | None,
    now: float,
) -> Object:
    available = sum(_count(item, "availableReplicas") for item in replica_sets)
    total = sum(map(_size, replica_sets))
    counts = {
        "replicas": sum(_count(item, "replicas") for item in replica_sets),
        "updatedReplicas": _count(current, "replicas"),
        "readyReplicas": sum(_count(item, "readyReplicas") for item in replica_sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, max(total, bounds.wanted) - available),
    }
    before = deployment.get("status") or {}
    enough = available >= bounds.min_available
    conditions: list[Object] = [
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            "message": "Deployment has minimum availability."
            if enough
            else "Deployment does not have minimum availability.",
        }
    ]
    progressing = _progressing(deployment, current, counts, bounds, created=created, now=now)
    if progressing:
        conditions.append(progressing)
    return {
        **{field: count for field, count in counts.items() if count},
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "conditions": merge_conditions(
            before.get("conditions") or [], conditions, now, stamp_updates=True
        ),
    }


def _progressing(
    deployment: Mapping[str, Any],
    current: Object | None,
    counts: Mapping[str, int],
    bounds: _Bounds,
    *,
    created: Object | None,
    now: float,
) -> Object | None:
    spec = deployment["spec"]
    before = condition_of(deployment, "Progressing")
    name = name_of(created or current or deployment)

    def condition(status: str, reason: str, message: str) -> Object:
        return {"type": "Progressing", "status": status, "reason": reason, "message": message}

    if spec.get("paused"):
        return condition("Unknown", "DeploymentPaused", "Deployment is paused")
    if created is not None:
        return {
            **condition("True", "NewReplicaSetCreated", f'Created new replica set "{name}"'),
            "lastUpdateTime": format_time(now),
        }
    complete = (
        counts["updatedReplicas"] == counts["replicas"] == bounds.wanted
        and counts["availableReplicas"] == bounds.wanted
    )
    if complete:
        message = f'ReplicaSet "{name}" has successfully progressed.'
        return condition("True", "NewReplicaSetAvailable", message)
    was = deployment.get("status") or {}
    old_before = int(was.get("replicas") or 0) - int(was.get("updatedReplicas") or 0)
    progressed = counts["replicas"] - counts["updatedReplicas"] < old_before or any(
        counts[field] > int(was.get(field) or 0)
        for field in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    progress = condition("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
    if progressed or not before or before.get("reason") == "DeploymentPaused":
        return {**progress, "lastUpdateTime": format_time(now)}
    if before.get("reason") == "NewReplicaSetAvailable":
        # Pods lost after a roll-out that was finished do not make it unfinished.
        return condition("True", "NewReplicaSetAvailable", str(before.get("message", "")))
    since = parse_time(before["lastUpdateTime"]) if before.get("lastUpdateTime") else now
    deadline_s = int(spec.get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE_S))
    if before.get("reason") == "ProgressDeadlineExceeded" or now - since >= deadline_s:
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return condition("False", "ProgressDeadlineExceeded", message)
    return {**progress, "lastUpdateTime": before.get("lastUpdateTime", format_time(now))}


def _seconds_to_deadline(spec: Mapping[str, Any], status: Object, now: float) -> float | None:
    condition = condition_of({"status": status}, "Progressing")
    if condition.get("reason") not in ("ReplicaSetUpdated", "NewReplicaSetCreated"):
        return None
    deadline_s = int(spec.get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE_S))
    return max(0.1, parse_time(str(condition["lastUpdateTime"])) + deadline_s - now)
