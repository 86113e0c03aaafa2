"""Which pods stand behind a Service, and in what condition."""

from typing import Any

import pytest

from octavo_local.controllers.endpoints import make_endpoint_slice, make_endpoints


def make_service(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "svc", "namespace": "default", "uid": "u"},
        "spec": {
            "selector": {"app": "x"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            **spec,
        },
    }


def make_pod(
    name: str, ip: str | None, *, ready: bool, deleting: bool = False, app: str = "x"
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": {"app": app},
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": "local",
            "containers": [{"ports": [{"name": "http", "containerPort": 8000}]}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **({"podIP": ip} if ip else {}),
        },
    }


@pytest.mark.parametrize(
    ("ready", "deleting", "publish", "expected"),
    [
        (True, False, False, {"ready": True, "serving": True, "terminating": False}),
        (False, False, False, {"ready": False, "serving": False, "terminating": False}),
        (True, True, False, {"ready": False, "serving": True, "terminating": True}),
        (False, True, False, {"ready": False, "serving": False, "terminating": True}),
        (False, False, True, {"ready": True, "serving": True, "terminating": False}),
    ],
)
def test_conditions_of_an_endpoint(
    ready: bool, deleting: bool, publish: bool, expected: dict[str, bool]
) -> None:
    service = make_service(publishNotReadyAddresses=publish)
    pod = make_pod("a", "127.77.0.1", ready=ready, deleting=deleting)
    endpoint = make_endpoint_slice(service, [pod])["endpoints"][0]
    assert endpoint["conditions"] == expected


def test_a_slice_holds_the_selected_pods_with_addresses_and_the_ports_by_number() -> None:
    pods = [
        make_pod("b", "127.77.0.2", ready=True),
        make_pod("a", "127.77.0.1", ready=True),
        make_pod("no-address-yet", None, ready=False),
        make_pod("other", "127.77.0.3", ready=True, app="y"),
    ]
    made = make_endpoint_slice(make_service(), pods)
    assert [entry["addresses"] for entry in made["endpoints"]] == [["127.77.0.1"], ["127.77.0.2"]]
    assert made["ports"] == [{"name": "http", "port": 8000, "protocol": "TCP"}]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "svc"


def test_endpoints_part_the_ready_from_the_others() -> None:
    pods = [make_pod("a", "127.77.0.1", ready=True), make_pod("b", "127.77.0.2", ready=False)]
    subset = make_endpoints(make_service(), pods)["subsets"][0]
    assert [entry["ip"] for entry in subset["addresses"]] == ["127.77.0.1"]
    assert [entry["ip"] for entry in subset["notReadyAddresses"]] == ["127.77.0.2"]


def test_a_service_with_no_pods_has_no_subset() -> None:
    assert make_endpoints(make_service(), [])["subsets"] == []
    assert make_endpoint_slice(make_service(), [])["endpoints"] == []
