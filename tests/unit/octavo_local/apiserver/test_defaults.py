"""Defaults of built-in kinds."""

from typing import Any

import pytest

from octavo_local.apiserver.builtin_defaults import quality_of_service


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], quality: str) -> None:
    assert quality_of_service({"containers": [{"resources": resources}]}) == quality
