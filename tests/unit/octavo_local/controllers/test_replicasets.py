"""How many pods to create, which to delete first, what the status says."""

from typing import Any

import pytest

from octavo_local.controllers.replicasets import DELETION_COST, decide_replica_set, make_pod
from octavo_local.objects import format_time

NOW = 1_800_000_000.0


def make_replica_set(replicas: int, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "rs", "namespace": "default", "uid": "u", "generation": 3},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}},
            **spec,
        },
    }


def make_replica(
    name: str,
    *,
    node: str = "local",
    phase: str = "Running",
    ready_s: float | None = 100,
    restarts: int = 0,
    cost: str = "0",
    age_s: float = 1000,
    deleting: bool = False,
) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "False" if ready_s is None else "True"}
    ready["lastTransitionTime"] = format_time(NOW - (ready_s or 0))
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {"app": "x"},
        "annotations": {DELETION_COST: cost},
        "creationTimestamp": format_time(NOW - age_s),
    }
    if deleting:
        metadata["deletionTimestamp"] = format_time(NOW)
    return {
        "metadata": metadata,
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": phase,
            "conditions": [ready],
            "containerStatuses": [{"restartCount": restarts}],
        },
    }


def test_missing_pods_are_created_and_pods_that_end_do_not_count() -> None:
    pods = [
        make_replica("a"),
        make_replica("b", deleting=True),
        make_replica("c", phase="Failed"),
    ]
    plan = decide_replica_set(make_replica_set(3), pods, NOW)
    assert plan.num_to_create == 2
    assert plan.delete == ()
    assert plan.status["replicas"] == 1
    assert plan.status["observedGeneration"] == 3


@pytest.mark.parametrize(
    ("why", "first"),
    [
        ("it has no node", make_replica("first", node="")),
        ("it is pending", make_replica("first", phase="Pending")),
        ("it is not ready", make_replica("first", ready_s=None)),
        ("it is cheap to delete", make_replica("first", cost="-5")),
        ("it restarted more often", make_replica("first", restarts=4)),
        ("it is younger", make_replica("first", age_s=5)),
    ],
)
def test_the_pod_that_is_missed_least_goes_first(why: str, first: dict[str, Any]) -> None:
    pods = [make_replica("a"), first, make_replica("z")]
    plan = decide_replica_set(make_replica_set(2), pods, NOW)
    assert plan.delete == ("first",), why


def test_a_ready_pod_becomes_available_after_its_minimum_time() -> None:
    pods = [make_replica("old", ready_s=60), make_replica("new", ready_s=4)]
    plan = decide_replica_set(make_replica_set(2, minReadySeconds=10), pods, NOW)
    assert (plan.status["readyReplicas"], plan.status["availableReplicas"]) == (2, 1)
    assert plan.check_after_s == 6


def test_a_new_pod_belongs_to_its_replica_set() -> None:
    pod = make_pod(make_replica_set(1))
    assert pod["metadata"]["name"].startswith("rs-")
    assert pod["metadata"]["ownerReferences"][0]["controller"] is True
    assert pod["metadata"]["labels"] == {"app": "x"}
