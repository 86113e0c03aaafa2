"""The operator as a process against the API over HTTP, from apply to delete."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo_local.apiserver.resources import DEPLOYMENTS, SERVICES
from octavo_wire.failures import Reason, StartupFailure
from support.api import Kubectl, RunningApi
from support.inference import MODEL, condition
from support.operator_process import Hand, OperatorProcess, running_operator, wait_for

KIND = "inferenceservice"


@pytest.fixture(scope="module")
def operator(
    api: RunningApi,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with running_operator(api.kubeconfig, log, "--log-level=debug") as running:
        yield running
        assert "Traceback" not in running.text()
        assert running.process.poll() is None


@pytest.fixture
def hand(operator: OperatorProcess, api: RunningApi, kubectl: Kubectl) -> Hand:
    return Hand(api=api, namespace=kubectl.namespace)


def manifest(name: str = "chat", **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": MODEL}, **spec},
        }
    )


def apply(kubectl: Kubectl, name: str = "chat", **spec: Any) -> None:
    kubectl.run("apply", "-f", "-", stdin=manifest(name, **spec))


def wait_for_reason(
    kubectl: Kubectl,
    reason: str,
    kind: str = "Ready",
) -> dict[str, Any]:
    """The service's status once its condition has that reason for its current spec."""

    def look() -> dict[str, Any] | None:
        obj = kubectl.json("get", KIND, "chat")
        status: dict[str, Any] = obj.get("status") or {}
        current = status.get("observedGeneration") == obj["metadata"]["generation"]
        return status if current and condition(status, kind)["reason"] == reason else None

    found: dict[str, Any] = wait_for(look, what=f"for {kind} {reason}")
    return found


def serve(kubectl: Kubectl, hand: Hand, **spec: Any) -> None:
    apply(kubectl, **spec)
    hand.start_pod("chat")
    hand.set_pod("p0", ready=True)
    wait_for_reason(kubectl, "Serving")


def test_from_apply_to_ready_to_delete(kubectl: Kubectl, hand: Hand) -> None:
    apply(kubectl, engine={"maxNumSeqs": 8})
    status = wait_for_reason(kubectl, "CreatingPods")
    assert condition(status, "Ready")["nextAction"]
    hand.start_pod("chat")
    hand.set_pod("p0", state={"running": {"startedAt": "2026-11-01T10:00:00Z"}})
    wait_for_reason(kubectl, "LoadingModel")
    hand.set_pod("p0", ready=True)
    kubectl.run("wait", KIND, "chat", "--for=condition=Ready", "--timeout=20s")

    row = kubectl.run("get", KIND, "chat", "--no-headers").split()
    url = f"http://chat.{kubectl.namespace}.svc"
    assert row[:5] == ["chat", "True", "Serving", "1/1", url]
    services = {item["metadata"]["name"]: item for item in kubectl.json("get", "svc")["items"]}
    assert services["chat"]["spec"]["ports"][0]["port"] == 80
    assert services["chat-engines"]["spec"]["clusterIP"] == "None"
    events = kubectl.json("get", "events")["items"]
    assert {event["reason"] for event in events} >= {"Planned", "Serving"}

    kubectl.run("delete", KIND, "chat", "--timeout=20s")
    wait_for(lambda: not kubectl.json("get", "deploy,svc")["items"], what="for the children to go")


def test_nothing_of_ours_is_written_on_the_object(
    kubectl: Kubectl,
    hand: Hand,
) -> None:
    kubectl.run("create", "-f", "-", stdin=manifest())
    wait_for_reason(kubectl, "CreatingPods")
    meta = kubectl.json("get", KIND, "chat")["metadata"]
    assert "annotations" not in meta
    assert "finalizers" not in meta
    kubectl.run("replace", "-f", "-", stdin=manifest(engine={"maxNumSeqs": 4}))
    wait_for_reason(kubectl, "CreatingPods")
    (deployment,) = kubectl.json("get", "deploy")["items"]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-num-seqs=4" in args


def test_drift_is_repaired(api: RunningApi, kubectl: Kubectl, hand: Hand) -> None:
    serve(kubectl, hand)
    kubectl.run("delete", "svc", "chat")
    kubectl.run("set", "image", "deployment/chat", "engine=other:1")
    kubectl.run("scale", "deployment/chat", "--replicas=5")

    def repaired() -> bool:
        found = hand.deployment("chat")
        assert found is not None
        image = found["spec"]["template"]["spec"]["containers"][0]["image"]
        there = api.call(lambda store: store.exists(SERVICES, kubectl.namespace, "chat"))
        return there and image.startswith("octavo-engine:") and found["spec"]["replicas"] == 1

    wait_for(repaired)


def test_a_changed_spec_rolls_and_the_old_pod_does_not_count(
    kubectl: Kubectl,
    hand: Hand,
) -> None:
    serve(kubectl, hand)
    apply(kubectl, engine={"maxModelLen": 512})
    status = wait_for_reason(kubectl, "ServingPreviousRevision")
    assert condition(status, "Progressing")["reason"] == "RollingUpdate"
    assert (status["readyReplicas"], status["updatedReadyReplicas"]) == (1, 0)
    hand.start_pod("chat", "p1")
    hand.set_pod("p1", ready=True)
    # As docs/inferenceservice.md says to wait for a change.
    generation = kubectl.json("get", "oisvc", "chat")["metadata"]["generation"]
    serving = '{.status.conditions[?(@.type=="Ready")].reason}=Serving'
    for wanted in (f"{{.status.observedGeneration}}={generation}", serving):
        kubectl.run("wait", f"{KIND}/chat", f"--for=jsonpath={wanted}", "--timeout=20s")
    hand.delete_pod("p0")
    wait_for_reason(kubectl, "Complete", "Progressing")
    wait_for_reason(kubectl, "Serving")


def test_a_strategy_changes_with_the_place_that_is_asked_for(
    kubectl: Kubectl,
    hand: Hand,
) -> None:
    serve(kubectl, hand)
    apply(kubectl, resources={"limits": {"nvidia.com/gpu": 1}})
    wait_for_reason(kubectl, "RecreateNoSpareAccelerator", "Progressing")
    deployment = hand.deployment("chat")
    assert deployment is not None
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert not image.endswith("-cpu")


def test_scale_goes_through_the_subresource(kubectl: Kubectl, hand: Hand) -> None:
    serve(kubectl, hand)
    kubectl.run("scale", f"{KIND}/chat", "--replicas=0")
    wait_for_reason(kubectl, "ScalingDown", "Progressing")
    hand.delete_pod("p0")
    wait_for_reason(kubectl, "ScaledToZero")
    deployment = hand.deployment("chat")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 0


@pytest.mark.parametrize("reason", [Reason.MODEL_NOT_FOUND, Reason.INSUFFICIENT_MEMORY])
def test_an_engine_that_cannot_start_says_why(
    kubectl: Kubectl,
    hand: Hand,
    reason: Reason,
) -> None:
    failure = StartupFailure(reason=reason, message="This and that.", next_action="Do so.")
    ended = {"exitCode": 78, "reason": "Error", "message": failure.to_json()}
    apply(kubectl)
    hand.start_pod("chat")
    hand.set_pod(
        "p0",
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": ended},
        restartCount=2,
    )
    ready = condition(wait_for_reason(kubectl, reason), "Ready")
    assert (ready["message"], ready["nextAction"]) == ("This and that.", "Do so.")
    shown = kubectl.run("describe", KIND, "chat")
    assert "Do so." in shown


def test_what_cannot_work_is_refused_and_what_runs_goes_on(
    kubectl: Kubectl,
    hand: Hand,
) -> None:
    apply(kubectl, engine={"parallelism": {"tensor": 2}})
    wait_for_reason(kubectl, "ParallelismNotSupported")
    assert hand.deployment("chat") is None
    serve(kubectl, hand, engine={"parallelism": {"tensor": 1}})
    apply(kubectl, engine={"parallelism": {"tensor": 2}})
    status = wait_for_reason(kubectl, "ServingPreviousRevision")
    assert condition(status, "Planned")["reason"] == "ParallelismNotSupported"
    assert hand.deployment("chat") is not None


def test_an_idle_service_is_left_alone(
    api: RunningApi,
    kubectl: Kubectl,
    hand: Hand,
    operator: OperatorProcess,
) -> None:
    """P35: what is not written cannot be a storm."""
    serve(kubectl, hand)
    wait_for_reason(kubectl, "Complete", "Progressing")

    def versions() -> list[str]:
        objs = kubectl.json("get", f"{KIND},deploy,svc,events")["items"]
        return sorted(f"{obj['kind']} {obj['metadata']['resourceVersion']}" for obj in objs)

    def looks() -> int:
        return operator.text().count(f"request: GET /api/v1/namespaces/{kubectl.namespace}/pods")

    before = versions()
    # Make the operator look again, without a change to the service itself.
    for label in ("a", "b", "c"):
        looks_before = looks()
        kubectl.run("label", "pod/p0", "--overwrite", f"looked={label}")
        wait_for(lambda so_far=looks_before: looks() > so_far)
    assert versions() == before


def test_names_are_never_taken_from_others(
    api: RunningApi,
    kubectl: Kubectl,
    hand: Hand,
) -> None:
    labels = {"app": "mine"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "mine:1"}]},
    }
    mine = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    kubectl.run("create", "-f", "-", stdin=json.dumps(mine))
    apply(kubectl)
    wait_for_reason(kubectl, "NameTaken")
    found = api.call(lambda store: store.get(DEPLOYMENTS, kubectl.namespace, "chat"))
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"
    kubectl.run("delete", "deployment", "chat")
    kubectl.run("label", KIND, "chat", "look=again")
    wait_for(lambda: hand.deployment("chat"))
