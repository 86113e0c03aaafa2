from typing import Any

import pytest

from octavo_operator.api.spec import parse_service
from octavo_operator.core.render.deployment import ImageSource, choose_strategy, make_deployment
from support.inference import make_object


@pytest.mark.parametrize(
    ("resources", "cores"),
    [
        ({}, "1"),
        ({"requests": {"cpu": "1500m"}}, "1.5"),
        ({"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": 8}}, "8"),
        ({"limits": {"cpu": 2}}, None),  # the cgroup says it
        ({"requests": {"cpu": "500m"}, "limits": {"cpu": 2}}, None),
        ({"requests": {"cpu": "0"}}, None),
    ],
)
def test_an_engine_without_a_cpu_limit_is_told_what_it_asked_for(
    resources: dict[str, Any], cores: str | None
) -> None:
    service = parse_service(make_object(resources=resources))
    images = ImageSource(registry="", version="1")
    deployment = make_deployment(service, images, choose_strategy(service))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env.get("OCTAVO_CPU_LIMIT") == cores
