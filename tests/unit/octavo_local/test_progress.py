"""What a person who waits is told."""

from typing import Any

import pytest

from octavo_local.progress import progress_of


def make_service(status: dict[str, Any] | None, generation: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": "x", "generation": generation}, "status": status}


def ready(status: str, reason: str, **fields: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "reason": reason, **fields}
    return {"observedGeneration": 1, "conditions": [condition]}


@pytest.mark.parametrize(
    ("service", "phase", "is_passing"),
    [
        (make_service(None), "waiting for the operator", True),
        (make_service(ready("True", "Serving")), "Ready", True),
        (make_service(ready("True", "Serving"), generation=2), "waiting for the operator", True),
        (make_service(ready("False", "LoadingModel")), "loading the model", True),
        (make_service(ready("False", "ModelNotFound")), "ModelNotFound", False),
        (make_service(ready("False", "Unschedulable")), "Unschedulable", False),
    ],
)
def test_the_phase_and_whether_waiting_helps(
    service: dict[str, Any], phase: str, is_passing: bool
) -> None:
    progress = progress_of(service)
    assert (progress.phase, progress.is_passing) == (phase, is_passing)


def test_a_bad_phase_is_shown_with_its_reason_and_what_to_do() -> None:
    status = ready("False", "ModelNotFound", message="no file", nextAction="Check the path.")
    line = progress_of(make_service(status)).line(3.21)
    assert line.splitlines() == [
        "   3.2 s  x: ModelNotFound",
        "          no file",
        "          Next: Check the path.",
    ]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "CrashLoopBackOff",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no cpu"}]},
            "no cpu",
        ),
    ],
)
def test_an_operator_that_does_not_run_is_told(status: dict[str, Any], told: str) -> None:
    progress = progress_of(make_service(None), [{"status": status}])
    assert progress.reason == ("OperatorNotRunning" if told else "WaitingForOperator")
    assert told in progress.message
