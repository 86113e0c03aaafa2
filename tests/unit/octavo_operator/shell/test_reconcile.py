"""Looks against a cluster in a dict, with faults between any two writes."""

from datetime import UTC, datetime

import pytest

from octavo_operator.core.render.deployment import ImageSource
from octavo_operator.shell.apply import status_patch
from octavo_operator.shell.cluster import ClusterError
from octavo_operator.shell.reconcile import Reconciler
from octavo_operator.shell.work_queue import Key, WorkQueue
from support.fake_cluster import FakeCluster
from support.inference import condition, make_object

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
KEY = Key("team", "chat")
CHILDREN = [("Deployment", "chat"), ("Service", "chat"), ("Service", "chat-engines")]


def make_reconciler(cluster: FakeCluster) -> Reconciler:
    images = ImageSource(registry="", version="1")
    return Reconciler(cluster, WorkQueue(lambda: 0.0), images, now=lambda: NOW)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(make_object())
    return cluster


def status(cluster: FakeCluster) -> dict[str, object]:
    found: dict[str, object] = cluster.objects["InferenceService", "team", "chat"]["status"]
    return found


async def test_one_look_makes_children_status_and_an_event(cluster: FakeCluster) -> None:
    assert await make_reconciler(cluster).reconcile(KEY) is not None
    assert cluster.children() == CHILDREN
    assert status(cluster)["observedGeneration"] == 1
    assert [kind for operation, kind, _ in cluster.writes if operation == "create"] == ["Event"]


async def test_another_look_writes_nothing(cluster: FakeCluster) -> None:
    await make_reconciler(cluster).reconcile(KEY)
    cluster.writes.clear()
    for _ in range(3):
        await make_reconciler(cluster).reconcile(KEY)
    assert cluster.writes == []


async def test_the_object_itself_is_never_written_but_for_its_status(cluster: FakeCluster) -> None:
    before = cluster.objects["InferenceService", "team", "chat"]["metadata"]
    await make_reconciler(cluster).reconcile(KEY)
    after = cluster.objects["InferenceService", "team", "chat"]["metadata"]
    assert {**after, "resourceVersion": ""} == {**before, "resourceVersion": ""}
    assert {operation for operation, kind, _ in cluster.writes if kind == "InferenceService"} == {
        "patch_status"
    }


@pytest.mark.parametrize("survived", range(5))
async def test_a_process_that_dies_between_two_writes_is_made_good(
    cluster: FakeCluster, survived: int
) -> None:
    class Killed(BaseException):
        pass

    def kill(operation: str, kind: str) -> None:
        if operation not in ("get", "list") and len(cluster.writes) == survived:
            raise Killed

    cluster.faults.append(kill)
    with pytest.raises(Killed):
        await make_reconciler(cluster).reconcile(KEY)
    cluster.faults.clear()
    await make_reconciler(cluster).reconcile(KEY)
    assert cluster.children() == CHILDREN
    assert condition(status(cluster), "Planned")["status"] == "True"


async def test_drift_is_repaired(cluster: FakeCluster) -> None:
    await make_reconciler(cluster).reconcile(KEY)
    del cluster.objects["Service", "team", "chat"]
    deployment = cluster.objects["Deployment", "team", "chat"]
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    cluster.writes.clear()
    await make_reconciler(cluster).reconcile(KEY)
    assert cluster.children() == CHILDREN
    assert [write for write in cluster.writes if write[0] == "apply"] == [
        ("apply", "Deployment", "chat"),
        ("apply", "Service", "chat"),
    ]


async def test_a_refusal_of_the_cluster_is_told_once_and_retried_ever_later(
    cluster: FakeCluster,
) -> None:
    """P19: no hot loop."""

    def refuse(operation: str, kind: str) -> None:
        if operation == "apply":
            raise ClusterError("exceeded quota: pods", status=403)

    cluster.faults.append(refuse)
    reconciler = make_reconciler(cluster)
    delays = [await reconciler.reconcile(KEY) for _ in range(9)]
    assert delays == [1, 2, 4, 8, 16, 32, 64, 120, 120]
    assert condition(status(cluster), "Ready")["reason"] == "QuotaExceeded"
    assert [write[0] for write in cluster.writes].count("patch_status") == 1

    cluster.faults.clear()
    await reconciler.reconcile(KEY)
    assert cluster.children() == CHILDREN
    assert condition(status(cluster), "Ready")["reason"] == "CreatingPods"


async def test_a_server_that_fails_is_no_fault_of_the_service(cluster: FakeCluster) -> None:
    def fail(operation: str, kind: str) -> None:
        if operation == "apply":
            raise ClusterError("try later", status=503)

    cluster.faults.append(fail)
    with pytest.raises(ClusterError, match="try later"):
        await make_reconciler(cluster).reconcile(KEY)
    assert "status" not in cluster.objects["InferenceService", "team", "chat"]


async def test_a_service_that_is_gone_or_going_is_left_alone(cluster: FakeCluster) -> None:
    going = make_object()
    going["metadata"]["deletionTimestamp"] = "2026-11-01T11:00:00Z"
    cluster.put(going)
    assert await make_reconciler(cluster).reconcile(KEY) is None
    cluster.objects.clear()
    assert await make_reconciler(cluster).reconcile(KEY) is None
    assert cluster.writes == []


def test_a_status_patch_holds_what_changed_and_removes_what_went() -> None:
    before = {"same": 1, "changed": 1, "gone": 1}
    after = {"same": 1, "changed": 2, "new": 3}
    assert status_patch(before, after) == {"changed": 2, "new": 3, "gone": None}
    assert status_patch(after, after) == {}
