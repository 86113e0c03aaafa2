"""The operator's own life: start, Lease, kill -9, takeover, stop."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, LEASES, NAMESPACES
from octavo_local.apiserver.store import Store
from support.api import Kubectl, RunningApi, running_api
from support.inference import condition, make_object
from support.operator_process import Hand, running_operator, wait_for

CRD_NAME = "inferenceservices.serving.octavo.dev"


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[RunningApi]:
    with running_api(tmp_path) as api:
        yield api


def put_service(
    api: RunningApi, name: str = "chat", namespace: str = "default", **spec: Any
) -> None:
    obj = {**make_object(name, **spec), "metadata": {"name": name}}
    kubectl = Kubectl(kubeconfig=api.kubeconfig, namespace=namespace)
    kubectl.run("create", "-f", "-", stdin=json.dumps(obj))


def get_status(api: RunningApi, name: str = "chat", namespace: str = "default") -> dict[str, Any]:
    kubectl = Kubectl(kubeconfig=api.kubeconfig, namespace=namespace)
    status: dict[str, Any] = kubectl.json("get", "inferenceservice", name).get("status") or {}
    return status


def holder(api: RunningApi) -> str:
    lease = api.call(lambda store: store.get(LEASES, "default", "octavo-operator"))
    return str(lease["spec"]["holderIdentity"])


def test_killed_between_children_and_status_it_comes_back_and_finishes(
    own_api: RunningApi, tmp_path: Path
) -> None:
    hand = Hand(api=own_api, namespace="default")
    with running_operator(own_api.kubeconfig, tmp_path / "1") as operator:
        put_service(own_api)
        wait_for(lambda: hand.deployment("chat"))
        operator.kill()
    with running_operator(own_api.kubeconfig, tmp_path / "2") as operator:
        # The same pod name: the Lease need not run out first.
        assert "waiting:" not in operator.text()
        wait_for(lambda: get_status(own_api).get("observedGeneration") == 1)
    kubectl = Kubectl(kubeconfig=own_api.kubeconfig)
    names = [item["metadata"]["name"] for item in kubectl.json("get", "svc")["items"]]
    assert set(names) >= {"chat", "chat-engines"}


def test_another_operator_takes_over_from_one_that_was_killed(
    own_api: RunningApi, tmp_path: Path
) -> None:
    with (
        running_operator(own_api.kubeconfig, tmp_path / "a", identity="a") as first,
        running_operator(own_api.kubeconfig, tmp_path / "b", identity="b", lead=False) as second,
    ):
        wait_for(lambda: "waiting: a holds the lease" in second.text())
        port = second.health_port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            assert answer.status == 200
        assert holder(own_api) == "a"
        first.kill()
        wait_for(lambda: holder(own_api) == "b")
        put_service(own_api)
        wait_for(lambda: get_status(own_api))


def test_losing_the_lease_ends_the_process(own_api: RunningApi, tmp_path: Path) -> None:
    with running_operator(own_api.kubeconfig, tmp_path / "a") as operator:

        def seize(store: Store) -> None:
            lease = store.get(LEASES, "default", "octavo-operator")
            lease["spec"]["holderIdentity"] = "intruder"
            store.update(LEASES, "default", "octavo-operator", lease)

        own_api.call(seize)
        assert operator.process.wait(20) == 1
        assert "intruder holds the lease now" in operator.text()
    assert holder(own_api) == "intruder"


def test_told_to_stop_it_gives_the_lease_up_and_exits_with_0(
    own_api: RunningApi, tmp_path: Path
) -> None:
    with running_operator(own_api.kubeconfig, tmp_path / "a") as operator:
        put_service(own_api)
        wait_for(lambda: get_status(own_api))
        operator.process.send_signal(signal.SIGTERM)
        assert operator.process.wait(20) == 0
        assert "Traceback" not in operator.text()
    assert holder(own_api) == ""


def test_told_to_stop_while_it_waits_for_the_lease_it_exits_with_0(
    own_api: RunningApi, tmp_path: Path
) -> None:
    with (
        running_operator(own_api.kubeconfig, tmp_path / "a", identity="a"),
        running_operator(own_api.kubeconfig, tmp_path / "b", identity="b", lead=False) as second,
    ):
        wait_for(lambda: "waiting: a holds the lease" in second.text())
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(20) == 0
        assert "Traceback" not in second.text()
        assert holder(own_api) == "a"


def test_without_the_crd_it_says_so_and_waits(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        crd = api.call(lambda store: store.get(CUSTOM_RESOURCE_DEFINITIONS, None, CRD_NAME))
        api.call(lambda store: store.delete(CUSTOM_RESOURCE_DEFINITIONS, None, CRD_NAME))
        with running_operator(api.kubeconfig, tmp_path / "log", lead=False) as operator:
            wait_for(lambda: "kubectl apply -f crds/inferenceservices.yaml" in operator.text())
            crd = {**crd, "metadata": {"name": CRD_NAME}}
            crd.pop("status", None)
            api.call(lambda store: store.create(CUSTOM_RESOURCE_DEFINITIONS, None, crd))
            wait_for(lambda: "holds lease" in operator.text())
            put_service(api)
            wait_for(lambda: get_status(api))


def test_it_serves_only_the_namespaces_it_is_given(own_api: RunningApi, tmp_path: Path) -> None:
    own_api.call(lambda store: store.create(NAMESPACES, None, {"metadata": {"name": "mine"}}))
    with running_operator(own_api.kubeconfig, tmp_path / "a", "--namespaces=mine"):
        put_service(own_api, "theirs", "default")
        put_service(own_api, "ours", "mine")
        status = wait_for(lambda: get_status(own_api, "ours", "mine"))
        assert condition(status, "Planned")["status"] == "True"
        assert get_status(own_api, "theirs", "default") == {}


def test_a_settled_service_is_left_alone_while_others_change(
    own_api: RunningApi, tmp_path: Path
) -> None:
    with running_operator(own_api.kubeconfig, tmp_path / "a", "--log-level=debug") as operator:

        def requests_for(name: str) -> int:
            return operator.text().count(f"/inferenceservices/{name}")

        put_service(own_api, "quiet", replicas=0)
        wait_for(lambda: get_status(own_api, "quiet"))
        put_service(own_api, "busy", replicas=0)
        wait_for(lambda: get_status(own_api, "busy"))
        kubectl = Kubectl(kubeconfig=own_api.kubeconfig)
        seen: list[tuple[int, int]] = []
        for generation in range(2, 6):
            kubectl.run("scale", "oisvc", "busy", f"--replicas={(generation + 1) % 2}")
            wait_for(
                lambda wanted=generation: (
                    get_status(own_api, "busy")["observedGeneration"] == wanted
                )
            )
            seen.append((requests_for("quiet"), requests_for("busy")))
        (quiet_before, busy_before), (quiet, busy) = seen[0], seen[-1]
        assert busy_before > 0
        assert busy - busy_before >= 6  # each change: a look and a write of the status
        # One look may still have been due when the counting began.
        assert quiet - quiet_before <= 1
