"""What pods of a previous spec mean for a roll-out."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.core.observed import Observed
from octavo_operator.core.rollout import Rollout, measure_rollout
from support.inference import POD_SINCE, make_object, make_pod

LATER = datetime.fromisoformat(POD_SINCE) + timedelta(hours=1)


def measure(*pods: dict[str, Any]) -> Rollout:
    observed = Observed(service=make_object(), pods=pods)
    return measure_rollout(observed, LATER.astimezone(UTC), desired=1, revision="new")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_finished_pod_of_a_previous_spec_holds_nothing_up(phase: str) -> None:
    evicted = make_pod("old", revision="old")
    evicted["status"]["phase"] = phase
    assert measure(make_pod("new", revision="new", ready=True), evicted).complete


def test_one_that_is_going_does() -> None:
    going = make_pod("old", revision="old", deletionTimestamp="2026-11-01T10:01:00Z")
    rollout = measure(make_pod("new", revision="new", ready=True), going)
    assert (rollout.old, rollout.complete) == (1, False)


@pytest.mark.parametrize(("foreign", "waits"), [("1e9", True), ("100u", True), ("a lot", False)])
def test_what_others_added_to_a_pod_is_read_or_counts_as_not_fitting(
    foreign: str, waits: bool
) -> None:
    sidecar = {"name": "sidecar", "resources": {"limits": {"memory": foreign}}}
    old = make_pod("old", revision="old", ready=True)
    new = make_pod("new", revision="new", unschedulable="Insufficient memory")
    for pod in (old, new):
        pod["spec"]["containers"].append(sidecar)
    assert measure(old, new).waits_for_old_pods is waits
