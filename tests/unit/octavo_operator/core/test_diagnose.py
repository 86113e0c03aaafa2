"""P34: four wrong ways, four reasons; each says what to do."""

from typing import Any

import pytest

from octavo_operator.core.diagnose import diagnose, diagnose_pod
from octavo_wire.failures import Reason, StartupFailure
from support.inference import make_pod, running, terminated, waiting

NOT_FOUND = StartupFailure(
    reason=Reason.MODEL_NOT_FOUND, message="There is no file /m.gguf.", next_action="Name one."
)
TOO_SMALL = StartupFailure(
    reason=Reason.INSUFFICIENT_MEMORY, message="Needs 3 GiB, has 1.", next_action="Raise it."
)
FREE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("pod", "reason", "fragment"),
    [
        (make_pod(unschedulable=FREE), "Unschedulable", FREE),
        (
            make_pod(container=waiting("ImagePullBackOff", "no such tag", image="e:1")),
            "ImagePullFailed",
            "cannot get e:1: no such tag",
        ),
        (
            make_pod(container={"state": terminated(78, NOT_FOUND.to_json())}),
            "ModelNotFound",
            "There is no file /m.gguf.",
        ),
        (
            make_pod(
                container=waiting("CrashLoopBackOff", lastState=terminated(78, TOO_SMALL.to_json()))
            ),
            "InsufficientMemory",
            "Needs 3 GiB",
        ),
        (
            make_pod(container={"state": terminated(78, "log line\n" + NOT_FOUND.to_json())}),
            "ModelNotFound",
            "There is no file",
        ),
        (
            make_pod(
                container=waiting(
                    "CrashLoopBackOff",
                    lastState=terminated(1, "Traceback\nValueError: odd"),
                    restartCount=3,
                )
            ),
            "CrashLoopBackOff",
            "ended with exit code 1; restarted 3 times. It last said: Traceback | ValueError: odd",
        ),
        (
            make_pod(container={**running(), "lastState": terminated(137), "restartCount": 1}),
            "EngineExited",
            "was killed (exit code 137); restarted 1 time. It runs again",
        ),
        (
            make_pod(container={"lastState": terminated(137, "", "OOMKilled"), **running()}),
            "OOMKilled",
            "more memory than its limit",
        ),
        (
            make_pod(container=waiting("CreateContainerConfigError", "no such secret")),
            "CreateContainerConfigError",
            "no such secret",
        ),
    ],
)
def test_what_will_not_become_well_by_waiting(
    pod: dict[str, Any], reason: str, fragment: str
) -> None:
    diagnosis = diagnose_pod(pod)
    assert diagnosis.reason == reason
    assert fragment in diagnosis.message
    assert diagnosis.next_action
    assert diagnosis.failing


@pytest.mark.parametrize(
    ("pod", "reason", "fragment"),
    [
        (make_pod(), "StartingPod", "is being started."),
        (make_pod(container=waiting("ContainerCreating")), "StartingPod", "(ContainerCreating)"),
        (make_pod(container=running()), "LoadingModel", "started at 2026-11-01T10:00:00Z"),
    ],
)
def test_what_only_takes_its_time(pod: dict[str, Any], reason: str, fragment: str) -> None:
    diagnosis = diagnose_pod(pod)
    assert diagnosis.reason == reason
    assert fragment in diagnosis.message
    assert not diagnosis.failing


def test_a_failing_pod_says_more_than_one_that_loads() -> None:
    pods = [make_pod("a", container=running()), make_pod("b", unschedulable=FREE)]
    found = diagnose(pods, None)
    assert found is not None
    assert found.reason == "Unschedulable"


def test_ready_and_leaving_pods_need_no_diagnosis() -> None:
    leaving = make_pod("b", unschedulable=FREE, deletionTimestamp="2026-11-01T10:00:00Z")
    assert diagnose([make_pod("a", ready=True), leaving], None) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("pods is forbidden: exceeded quota: gpu-q, requested: 2, used: 1", "QuotaExceeded"),
        ("pods is forbidden: violates PodSecurity", "PodsRefused"),
    ],
)
def test_pods_that_may_not_be_created_are_explained(message: str, reason: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    found = diagnose([], {"status": {"conditions": [failure]}})
    assert found is not None
    assert found.reason == reason
    assert message in found.message
