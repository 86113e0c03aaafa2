"""What the operator applies is valid Kubernetes, and safe by default."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from octavo_operator.api.spec import parse_service
from octavo_operator.core.render.deployment import ImageSource, choose_strategy, make_deployment
from octavo_operator.core.render.services import make_services
from support.inference import make_object

OPERATOR = Path(__file__).parents[2] / "operator" / "octavo_local" / "manifests" / "operator.yaml"
KUBERNETES = "1.37"
SPECS: list[dict[str, Any]] = [
    {},
    {"resources": {"limits": {"nvidia.com/gpu": 1}}, "replicas": 2},
    {"resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}}},
    {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2}}},
    {"replicas": 0, "engine": {"maxNumSeqs": 4096, "dtype": "bfloat16"}},
]


def render(spec: dict[str, Any]) -> list[dict[str, Any]]:
    service = parse_service(make_object(**spec))
    images = ImageSource(registry="registry.example/octavo", version="1.2.3")
    return [make_deployment(service, images, choose_strategy(service)), *make_services(service)]


@pytest.mark.parametrize("spec", SPECS)
def test_every_manifest_is_valid(spec: dict[str, Any]) -> None:
    for manifest in render(spec):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_spec_gives_the_same_manifests(spec: dict[str, Any]) -> None:
    assert render(spec) == render(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_pods_meet_the_restricted_pod_security_standard(spec: dict[str, Any]) -> None:
    pod = render(spec)[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} == {"emptyDir"}


@pytest.mark.parametrize("spec", SPECS)
def test_no_secret_can_be_read_off_a_pod(spec: dict[str, Any]) -> None:
    (container,) = render(spec)[0]["spec"]["template"]["spec"]["containers"]
    said = [*container["args"], *(entry["name"] for entry in container["env"])]
    assert not [word for word in said if any(s in word.lower() for s in ("key", "token=", "pass"))]


@pytest.mark.parametrize("spec", SPECS)
def test_a_cpu_engine_has_a_memory_limit_and_every_pod_a_request(spec: dict[str, Any]) -> None:
    (container,) = render(spec)[0]["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    for name in ("cpu", "memory"):
        assert name in resources["requests"] or name in resources["limits"]
    if "nvidia.com/gpu" in resources["limits"]:
        assert container["image"] == "registry.example/octavo/octavo-engine:1.2.3"
    else:
        assert "memory" in resources["limits"]
        assert container["image"] == "registry.example/octavo/octavo-engine:1.2.3-cpu"


@pytest.mark.parametrize("spec", SPECS)
def test_children_are_owned_and_never_hold_up_a_deletion(spec: dict[str, Any]) -> None:
    for manifest in render(spec):
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, False)
        assert owner["uid"] == "uid-of-chat"
        assert "finalizers" not in manifest["metadata"]


@pytest.mark.parametrize("spec", SPECS)
def test_no_service_of_the_namespace_can_set_an_engine_setting(spec: dict[str, Any]) -> None:
    """A Service octavo-port would set OCTAVO_PORT by its link."""
    assert render(spec)[0]["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_nor_one_of_the_operator() -> None:
    """A Service octavo-health would set OCTAVO_HEALTH_PORT."""
    (deployment,) = [
        obj for obj in yaml.safe_load_all(OPERATOR.read_text()) if obj["kind"] == "Deployment"
    ]
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False
