"""A pod's status, from the records of its containers."""

from dataclasses import replace
from typing import Any

import pytest

from octavo_local.node.status import (
    ContainerRecord,
    Running,
    State,
    Terminated,
    Waiting,
    decide_phase,
    make_pod_status,
)
from octavo_local.objects import condition_of

RUNNING = Running(started_at=100)
DONE = Terminated(exit_code=0, reason="Completed", started_at=1, finished_at=2)
BROKEN = Terminated(exit_code=3, reason="Error", started_at=1, finished_at=2, message="no")
CREATING = Waiting(reason="ContainerCreating")
BACKING_OFF = Waiting(reason="CrashLoopBackOff")


def record(state: State, **changes: Any) -> ContainerRecord:
    return ContainerRecord(name="c", image="i", state=state, **changes)


@pytest.mark.parametrize(
    ("policy", "init", "states", "phase"),
    [
        ("Always", [], [CREATING], "Pending"),
        ("Always", [], [RUNNING, CREATING], "Running"),
        ("Always", [], [DONE], "Running"),
        ("OnFailure", [], [DONE, DONE], "Succeeded"),
        ("OnFailure", [], [DONE, BROKEN], "Running"),
        ("Never", [], [DONE, BROKEN], "Failed"),
        ("Never", [], [DONE, RUNNING], "Running"),
        ("Always", [RUNNING], [CREATING], "Pending"),
        ("Always", [BROKEN], [CREATING], "Pending"),
        ("Never", [BROKEN], [CREATING], "Failed"),
        ("Always", [DONE], [RUNNING], "Running"),
    ],
)
def test_the_phase(policy: str, init: list[State], states: list[State], phase: str) -> None:
    found = decide_phase({"restartPolicy": policy}, [*map(record, init)], [*map(record, states)])
    assert found == phase


def test_a_pod_that_backs_off_has_run() -> None:
    assert decide_phase({}, [], [record(BACKING_OFF, last_state=BROKEN)]) == "Running"


def make_status(pod: dict[str, Any], *records: ContainerRecord, now: float = 200) -> dict[str, Any]:
    return make_pod_status(
        pod, [], records, pod_ip="127.77.0.1", host_ip="127.0.0.1", started_at=100, now=now
    )


POD: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}


def test_ready_follows_the_containers_and_keeps_its_time() -> None:
    waiting = make_status(POD, record(RUNNING))
    assert condition_of({"status": waiting}, "Ready")["message"] == (
        "containers with unready status: [c]"
    )
    ready = make_status(POD | {"status": waiting}, record(RUNNING, is_ready=True), now=300)
    again = make_status(POD | {"status": ready}, record(RUNNING, is_ready=True), now=400)
    assert condition_of({"status": ready}, "Ready")["status"] == "True"
    assert ready == again


def test_conditions_and_readiness_gates_of_others_are_respected() -> None:
    pod: dict[str, Any] = {
        "metadata": {},
        "spec": {**POD["spec"], "readinessGates": [{"conditionType": "routed"}]},
        "status": {"conditions": [{"type": "routed", "status": "False"}]},
    }
    status = make_status(pod, record(RUNNING, is_ready=True))
    assert condition_of({"status": status}, "ContainersReady")["status"] == "True"
    assert condition_of({"status": status}, "Ready")["reason"] == "ReadinessGatesNotReady"
    pod["status"] = {"conditions": [{"type": "routed", "status": "True"}]}
    status = make_status(pod, record(RUNNING, is_ready=True))
    assert condition_of({"status": status}, "Ready")["status"] == "True"


def test_an_end_is_told_with_its_code_reason_and_message() -> None:
    ended = record(BACKING_OFF, last_state=replace(BROKEN, signal=9), restart_count=2)
    container = make_status(POD, ended)["containerStatuses"][0]
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert container["restartCount"] == 2
    last = container["lastState"]["terminated"]
    assert (last["exitCode"], last["signal"], last["message"]) == (3, 9, "no")
