from copy import deepcopy
from typing import Any

import pytest

from octavo_operator.api.spec import parse_service
from octavo_operator.core.drift import has_drifted
from octavo_operator.core.render.deployment import ImageSource, choose_strategy, make_deployment
from support.inference import make_object

SPEC: dict[str, Any] = {"resources": {"limits": {"memory": "1024Mi"}}}


def make(**spec: Any) -> dict[str, Any]:
    images = ImageSource(registry="", version="1")
    service = parse_service(make_object(**(SPEC | spec)))
    return make_deployment(service, images, choose_strategy(service))


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def stored() -> dict[str, Any]:
    """As an API server stores it: with defaults, and its own way of writing quantities."""
    live = deepcopy(make())
    live["metadata"]["uid"] = "u"
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    container(live)["resources"]["limits"]["memory"] = "1Gi"
    container(live)["livenessProbe"]["successThreshold"] = 1
    del live["spec"]["template"]["spec"]["volumes"][0]["emptyDir"]
    return live


def test_defaults_and_rewritten_quantities_are_no_drift() -> None:
    assert not has_drifted(make(), stored())


@pytest.mark.parametrize(
    ("key", "value"),
    [("image", "other:1"), ("args", ["serve"]), ("env", []), ("resources", {})],
)
def test_a_changed_field_is_drift(key: str, value: Any) -> None:
    live = stored()
    container(live)[key] = value
    assert has_drifted(make(), live)


def test_a_field_that_is_wanted_no_more_is_drift() -> None:
    live = stored()
    live["metadata"]["annotations"] = {"serving.octavo.dev/manifest-hash": "of another manifest"}
    assert has_drifted(make(), live)


def test_another_spec_is_drift() -> None:
    assert has_drifted(make(replicas=2), stored())


@pytest.mark.parametrize(
    ("asked", "kept"),
    [("0.0001", "1m"), ("0.0001", "100u"), ("1500m", "1500m"), ("1.5", "1500m"), ("2", 2)],
)
def test_what_the_api_rounds_is_no_drift(asked: str, kept: str | int) -> None:
    spec = {"resources": {"limits": {"cpu": asked}}}
    live = make(**spec)
    container(live)["resources"]["limits"]["cpu"] = kept
    assert not has_drifted(make(**spec), live)


def test_a_part_of_a_byte_is_no_drift() -> None:
    spec = {"resources": {"limits": {"memory": "0.7777Gi"}}}  # 835049016.5248 bytes
    live = make(**spec)
    container(live)["resources"]["limits"]["memory"] = "835049016525m"
    assert not has_drifted(make(**spec), live)
    container(live)["resources"]["limits"]["memory"] = "835049016524m"
    assert has_drifted(make(**spec), live)


def test_a_text_that_looks_like_an_equal_number_is_drift() -> None:
    live = stored()
    container(live)["args"][-1] = "1000m"
    wanted = make()
    container(wanted)["args"][-1] = "1"
    assert has_drifted(wanted, live)
