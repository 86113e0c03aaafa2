"""ReplicaSet -> Pods: how many to create, which to delete, and what the status says."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from octavo_local.objects import (
    Object,
    annotations_of,
    condition_of,
    is_deleting,
    is_true,
    labels_of,
    make_controller_reference,
    name_of,
    namespace_of,
    parse_time,
    random_suffix,
)

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetPlan:
    """`check_after_s`: a ready pod becomes available then, with no event to say so."""

    num_to_create: int
    delete: tuple[str, ...]
    status: Object
    check_after_s: float | None


def decide_replica_set(
    replica_set: Mapping[str, Any], pods: Sequence[Object], now: float
) -> ReplicaSetPlan:
    """What to do for a ReplicaSet, given the pods it controls."""
    spec = replica_set["spec"]
    wanted = 0 if is_deleting(replica_set) else int(spec.get("replicas", 1))
    active = [pod for pod in pods if is_active(pod)]
    surplus = sorted(active, key=_deletion_rank)[: max(0, len(active) - wanted)]
    min_ready_s = float(spec.get("minReadySeconds") or 0)
    waits = [_seconds_to_available(pod, min_ready_s, now) for pod in active]
    pending_waits = [wait for wait in waits if wait is not None and wait > 0]
    template_labels = spec["template"]["metadata"].get("labels") or {}
    status: Object = {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(
            template_labels.items() <= labels_of(pod).items() for pod in active
        ),
        "readyReplicas": sum(is_true(pod, "Ready") for pod in active),
        "availableReplicas": sum(wait == 0 for wait in waits),
        "observedGeneration": replica_set["metadata"].get("generation", 1),
    }
    return ReplicaSetPlan(
        num_to_create=max(0, wanted - len(active)),
        delete=tuple(name_of(pod) for pod in surplus),
        status=status,
        check_after_s=min(pending_waits, default=None),
    )


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether a pod counts as a replica: not finished, not on its way out."""
    return not is_deleting(pod) and _phase(pod) not in ("Succeeded", "Failed")


def make_pod(replica_set: Mapping[str, Any]) -> Object:
    """A new pod of the ReplicaSet's template, with a fresh name."""
    template = deepcopy(replica_set["spec"]["template"])
    metadata = template.get("metadata") or {}
    metadata = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": f"{name_of(replica_set)[:57]}-{random_suffix()}",
            "generateName": f"{name_of(replica_set)}-",
            "namespace": namespace_of(replica_set),
            "ownerReferences": [make_controller_reference(replica_set, "apps/v1", "ReplicaSet")],
        },
        "spec": template["spec"],
    }


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _deletion_rank(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Smallest goes first: pods that serve nobody before pods that do, young before old."""
    ready = is_true(pod, "Ready")
    restarts = max(
        (
            int(status.get("restartCount", 0))
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
        ),
        default=0,
    )
    try:
        cost = int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        cost = 0
    created = pod["metadata"].get("creationTimestamp")
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASE_RANK.get(_phase(pod), 2),
        ready,
        cost,
        -restarts,
        -(parse_time(created) if created else 0.0),
        name_of(pod),
    )


def _seconds_to_available(pod: Mapping[str, Any], min_ready_s: float, now: float) -> float | None:
    """0 when available, None when not ready."""
    condition = condition_of(pod, "Ready")
    if condition.get("status") != "True":
        return None
    if min_ready_s == 0 or not condition.get("lastTransitionTime"):
        return 0
    return max(0.0, parse_time(condition["lastTransitionTime"]) + min_ready_s - now)
