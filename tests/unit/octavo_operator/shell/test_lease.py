import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from octavo_operator.shell.cluster import ClusterError
from octavo_operator.shell.lease import LeaderLease, LeaseLost
from support.fake_cluster import FakeCluster

KEY = ("Lease", "ns", "op")


class Time:
    """A clock that moves only when somebody sleeps; `on_sleep` may act meanwhile."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_sleep()
        await asyncio.sleep(0)


def make(cluster: FakeCluster, time: Time, identity: str) -> LeaderLease:
    return LeaderLease(
        cluster,
        namespace="ns",
        name="op",
        identity=identity,
        duration_s=15,
        clock=time,
        sleep=time.sleep,
    )


def holder(cluster: FakeCluster) -> str:
    return str(cluster.objects[KEY]["spec"]["holderIdentity"])


async def test_a_free_lease_is_taken_at_once_and_given_up_again() -> None:
    cluster, time = FakeCluster(), Time()
    lease = make(cluster, time, "a")
    await lease.acquire()
    assert (holder(cluster), time.now_s) == ("a", 1000.0)
    await lease.release()
    assert holder(cluster) == ""
    other = make(cluster, time, "b")
    await other.acquire()
    assert (holder(cluster), time.now_s) == ("b", 1000.0)


async def test_a_silent_holder_is_replaced_after_the_duration() -> None:
    cluster, time = FakeCluster(), Time()
    await make(cluster, time, "a").acquire()
    await make(cluster, time, "b").acquire()
    assert holder(cluster) == "b"
    assert 15 <= time.now_s - 1000 <= 18
    assert cluster.objects[KEY]["spec"]["leaseTransitions"] == 1


async def test_the_same_pod_after_its_restart_takes_it_at_once() -> None:
    cluster, time = FakeCluster(), Time()
    await make(cluster, time, "a").acquire()
    await make(cluster, time, "a").acquire()
    assert (holder(cluster), time.now_s) == ("a", 1000.0)


async def test_a_holder_that_renews_is_not_replaced() -> None:
    cluster, time = FakeCluster(), Time()
    first = make(cluster, time, "a")
    await first.acquire()
    until_s = time.now_s + 60

    def renew() -> None:
        spec = cluster.objects[KEY]["spec"]
        if time.now_s < until_s:
            cluster.put({**cluster.objects[KEY], "spec": {**spec, "renewTime": str(time.now_s)}})

    time.on_sleep = renew
    await make(cluster, time, "b").acquire()
    assert time.now_s >= until_s + 12


async def test_losing_the_lease_to_another_ends_the_holding() -> None:
    cluster, time = FakeCluster(), Time()
    lease = make(cluster, time, "a")
    await lease.acquire()
    time.on_sleep = lambda: _seize(cluster, "b")
    with pytest.raises(LeaseLost, match="b holds the lease now"):
        await lease.hold()
    await lease.release()
    assert holder(cluster) == "b"


async def test_an_unreachable_api_ends_the_holding_before_another_may_start() -> None:
    cluster, time = FakeCluster(), Time()
    lease = make(cluster, time, "a")
    await lease.acquire()

    def fail(operation: str, kind: str) -> None:
        raise ClusterError("unreachable")

    cluster.faults.append(fail)
    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await lease.hold()
    assert time.now_s - 1000 < 15


async def test_one_failed_renewal_is_made_good() -> None:
    cluster, time = FakeCluster(), Time()
    lease = make(cluster, time, "a")
    await lease.acquire()
    calls: list[str] = []

    def fail_once(operation: str, kind: str) -> None:
        calls.append(operation)
        if len(calls) == 1:
            raise ClusterError("a hiccup", status=500)
        if len(calls) == 20:
            _seize(cluster, "b")

    cluster.faults.append(fail_once)
    with pytest.raises(LeaseLost, match="b holds"):
        await lease.hold()
    assert len(calls) >= 20


class CutOff(FakeCluster):
    """Writes arrive, but whoever asked is cancelled before the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.cut_off = True

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return self._answer(await super().create(manifest))

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return self._answer(await super().replace(manifest))

    def _answer(self, stored: dict[str, Any]) -> dict[str, Any]:
        if self.cut_off:
            self.cut_off = False
            raise asyncio.CancelledError
        return stored


async def test_a_lease_that_was_being_taken_when_told_to_stop_is_given_up() -> None:
    cluster, time = CutOff(), Time()
    lease = make(cluster, time, "a")
    with pytest.raises(asyncio.CancelledError):
        await lease.acquire()
    assert holder(cluster) == "a"
    await lease.release()
    assert holder(cluster) == ""


async def test_a_renewal_that_was_cut_off_does_not_keep_the_lease_held() -> None:
    cluster, time = CutOff(), Time()
    cluster.cut_off = False
    lease = make(cluster, time, "a")
    await lease.acquire()
    cluster.cut_off = True
    with pytest.raises(asyncio.CancelledError):
        await lease.hold()
    await lease.release()
    assert holder(cluster) == ""


async def test_a_write_that_arrives_during_the_release_is_overcome() -> None:
    cluster, time = FakeCluster(), Time()
    lease = make(cluster, time, "a")
    await lease.acquire()
    late = dict(cluster.objects[KEY])

    def arrive(operation: str, kind: str) -> None:
        if operation == "replace":
            cluster.faults.clear()
            cluster.put(late)

    cluster.faults.append(arrive)
    await lease.release()
    assert holder(cluster) == ""


async def test_a_lease_that_was_never_asked_for_is_not_looked_at() -> None:
    cluster, time = FakeCluster(), Time()
    cluster.put({"kind": "Lease", "metadata": {"name": "op", "namespace": "ns"}, "spec": {"x": 1}})
    await make(cluster, time, "a").release()
    assert cluster.used == set()


def _seize(cluster: FakeCluster, identity: str) -> None:
    lease: dict[str, Any] = cluster.objects[KEY]
    spec = {**lease["spec"], "holderIdentity": identity, "renewTime": "now"}
    cluster.put({**lease, "spec": spec})
