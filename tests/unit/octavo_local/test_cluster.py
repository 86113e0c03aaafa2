"""What a recorder of Events keeps in mind."""

from datetime import UTC, datetime, timedelta

import pytest

from octavo_local import cluster as module
from octavo_local.apiserver.resources import EVENTS
from octavo_local.apiserver.store import Store
from octavo_local.cluster import Cluster, EventRecorder


def test_a_repeated_event_counts_and_an_expired_one_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MIN_PRUNED", 4)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    cluster = Cluster(Store(clock=lambda: now))
    recorder = EventRecorder(cluster, "kubelet", lambda: now.timestamp())
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
    for _ in range(2):
        recorder.record(pod, "Pod", "Started", "it started")
    assert [event["count"] for event in cluster.list(EVENTS)] == [2]
    for number in range(100):
        now += timedelta(minutes=40)  # of two in a row the older one has not expired
        recorder.record(pod, "Pod", "Failed", f"reason {number}")
    assert len(cluster.list(EVENTS)) == 2
    assert len(recorder._names) <= 5
