"""The chart grants what the operator uses: all of it, and nothing else.

Two halves: the chart equals the operator's table, which `Cluster` looks every call up in; and a
life of a service, told by the rights that it took, needs each entry of the table.
"""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.core.render.deployment import ImageSource
from octavo_operator.shell.handlers import WATCHED_CHILDREN, watch_children
from octavo_operator.shell.lease import LeaderLease, LeaseLost
from octavo_operator.shell.permissions import (
    OWN_NAMESPACE,
    RIGHTS,
    SERVED_NAMESPACES,
    Permission,
)
from octavo_operator.shell.reconcile import Reconciler
from octavo_operator.shell.work_queue import Key, WorkQueue
from octavo_wire.names import API_GROUP, PLURAL
from support.fake_cluster import FakeCluster
from support.inference import make_object

MANIFESTS = Path(__file__).parents[2] / "operator" / "octavo_local" / "manifests" / "operator.yaml"

# kopf lists and watches our own kind, for the one event handler that we give it.
OF_KOPF = {(API_GROUP, PLURAL, "list"), (API_GROUP, PLURAL, "watch")}
Granted = set[tuple[str, str, str]]


def granted(kind: str) -> Granted:
    """(group, resource, verb) of every rule of that kind, whatever names it is narrowed to."""
    objects: list[dict[str, Any]] = [
        obj for obj in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")) if obj
    ]
    return {
        (group, resource, verb)
        for obj in objects
        if obj["kind"] == kind
        for rule in obj["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(permissions: Iterable[Permission]) -> Granted:
    return {(entry.group, entry.resource, verb) for entry in permissions for verb in entry.verbs}


def test_served_namespaces_are_covered_exactly() -> None:
    assert granted("ClusterRole") == used(SERVED_NAMESPACES)


def test_the_own_namespace_is_covered_exactly() -> None:
    assert granted("Role") == used(OWN_NAMESPACE)


class Stop(Exception):
    pass


async def stop(_: float) -> None:
    raise Stop


async def look(cluster: FakeCluster) -> None:
    reconciler = Reconciler(cluster, WorkQueue(lambda: 0.0), ImageSource(registry="", version="1"))
    await reconciler.reconcile(Key("team", "chat"))


async def live_one_life(cluster: FakeCluster) -> None:
    lease = LeaderLease(
        cluster, namespace="ns", name="op", identity="a", duration_s=15, sleep=lose_on(cluster)
    )
    await lease.acquire()
    with pytest.raises(LeaseLost):
        await lease.hold()
    cluster.put(make_object())
    await look(cluster)
    # Children of ours that are wanted no more, as after an upgrade.
    for kind in ("Deployment", "Service"):
        extra = deepcopy(cluster.objects[kind, "team", "chat"])
        extra["metadata"]["name"] = "chat-of-old"
        cluster.put(extra)
    await look(cluster)
    for kind in WATCHED_CHILDREN:
        with pytest.raises(Stop):
            await watch_children(
                cluster, WorkQueue(lambda: 0.0), kind, None, clock=lambda: 0.0, sleep=stop
            )


def lose_on(cluster: FakeCluster) -> Any:
    """A sleep that lets one renewal pass and then lets somebody else take the Lease."""
    sleeps = []

    async def sleep(_: float) -> None:
        sleeps.append(1)
        if len(sleeps) == 2:
            obj = cluster.objects["Lease", "ns", "op"]
            cluster.put({**obj, "spec": {**obj["spec"], "holderIdentity": "b"}})

    return sleep


async def test_every_right_is_used() -> None:
    cluster = FakeCluster()
    await live_one_life(cluster)
    assert cluster.used | OF_KOPF == RIGHTS
    assert not cluster.used & OF_KOPF
