from typing import Any

import pytest

from octavo_operator.api.spec import parse_service
from octavo_operator.core.checks import find_refusal
from support.inference import make_object

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "reason", "fragment"),
    [
        (
            {"engine": {"parallelism": {"tensor": 2}}},
            "ParallelismNotSupported",
            "spec.engine.parallelism.tensor is 2",
        ),
        (
            {"engine": {"parallelism": {"pipeline": 4}}, "resources": {"limits": {GPU: 4}}},
            "ParallelismNotSupported",
            "pipeline is 4",
        ),
        ({"resources": {"limits": {GPU: 2}}}, "AcceleratorCountMismatch", "asks for 2"),
        ({"resources": {"limits": {GPU: "500m"}}}, "InvalidResources", "no whole number"),
        (
            {"resources": {"limits": {GPU: 1}, "requests": {GPU: 0}}},
            "InvalidResources",
            "wants both equal",
        ),
        (
            {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}}},
            "InvalidResources",
            "requests[cpu] (1500m) is more than the limit (1)",
        ),
        (
            {"resources": {"limits": {"memory": "100Mi"}}},
            "InsufficientMemory",
            "limits.memory is 100Mi",
        ),
        (
            {"resources": {"requests": {"memory": "64Mi"}}},
            "InsufficientMemory",
            "requests.memory is 64Mi",
        ),
    ],
)
def test_what_cannot_work_is_refused(spec: dict[str, Any], reason: str, fragment: str) -> None:
    refusal = find_refusal(parse_service(make_object(**spec)))
    assert refusal is not None
    assert refusal.reason == reason
    assert fragment in refusal.message
    assert refusal.next_action


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"resources": {"limits": {GPU: 1}}},
        {"resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "1Gi"}}},
        {"resources": {"requests": {"memory": "64Mi"}, "limits": {GPU: 1}}},
        {"resources": {"limits": {"memory": "512Mi", "cpu": "500m"}}},
        {"replicas": 0},
    ],
)
def test_what_can_work_is_not(spec: dict[str, Any]) -> None:
    assert find_refusal(parse_service(make_object(**spec))) is None
