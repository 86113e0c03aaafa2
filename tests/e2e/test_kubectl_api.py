"""The real kubectl against the in-memory API: built-in kinds, every verb that a user types."""

import json
import subprocess
import time

import pytest
import yaml

from octavo_local.apiserver.resources import DEPLOYMENTS, PODS, Object
from octavo_local.apiserver.store import Store
from support.api import Kubectl, RunningApi

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: "registry.example/web:1"
        ports: [{containerPort: 80}]
        env: [{name: A, value: "1"}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: lone, labels: {app: lone}}
spec: {containers: [{name: main, image: "registry.example/web:1"}]}
"""


def test_apply_creates_then_finds_nothing_to_do_then_configures(kubectl: Kubectl) -> None:
    assert "created" in kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "unchanged" in kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 3")
    assert "configured" in kubectl.run("apply", "-f", "-", stdin=changed)
    found = kubectl.json("get", "deployment", "web")
    assert found["spec"]["replicas"] == 3
    assert found["metadata"]["generation"] == 2
    assert found["spec"]["strategy"]["type"] == "RollingUpdate"


def test_apply_removes_what_the_manifest_no_longer_has(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run(
        "apply", "-f", "-", stdin=DEPLOYMENT.replace('env: [{name: A, value: "1"}]', "env: []")
    )
    container = kubectl.json("get", "deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert not container[0].get("env")


def test_diff_shows_the_change_and_changes_nothing(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    done = kubectl.try_run("diff", "-f", "-", stdin=DEPLOYMENT.replace("web:1", "web:2"))
    assert done.returncode == 1, done.stderr
    assert "+        image: registry.example/web:2" in done.stdout
    container = kubectl.json("get", "deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert container[0]["image"] == "registry.example/web:1"


def test_server_side_apply_refuses_to_take_a_field_until_it_is_forced(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--server-side", "--field-manager=a", "-f", "-", stdin=DEPLOYMENT)
    other = DEPLOYMENT.replace("replicas: 2", "replicas: 5")
    refusal = kubectl.fail("apply", "--server-side", "--field-manager=b", "-f", "-", stdin=other)
    assert 'Apply failed with 1 conflict: conflict with "a" using apps/v1: .spec.replicas' in (
        refusal
    )
    kubectl.run(
        "apply",
        "--server-side",
        "--field-manager=b",
        "--force-conflicts",
        "-f",
        "-",
        stdin=other,
    )
    assert kubectl.json("get", "deployment", "web")["spec"]["replicas"] == 5


def test_server_side_apply_takes_over_what_client_side_apply_made(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "serverside-applied" in kubectl.run(
        "apply", "--server-side", "-f", "-", stdin=DEPLOYMENT.replace("web:1", "web:2")
    )


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("strategic", {"spec": {"template": {"spec": {"containers": [
            {"name": "main", "env": [{"name": "B", "value": "2"}]}]}}}}),
        ("merge", {"spec": {"template": {"spec": {"containers": [
            {"name": "main", "image": "x", "env": [
                {"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]}}}}),
        ("json", [{"op": "add", "path": "/spec/template/spec/containers/0/env/-",
                   "value": {"name": "B", "value": "2"}}]),
    ],
)  # fmt: skip
def test_each_kind_of_patch_adds_a_variable(kubectl: Kubectl, kind: str, patch: object) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run("patch", "deployment", "web", f"--type={kind}", "-p", json.dumps(patch))
    container = kubectl.json("get", "deployment", "web")["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container[0]["env"]}
    assert variables == {"A": "1", "B": "2"}


def test_commands_that_change_one_thing(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run("scale", "deployment/web", "--replicas=7")
    kubectl.run("label", "deployment/web", "tier=front")
    kubectl.run("annotate", "deployment/web", "example.com/note=hello")
    kubectl.run("set", "image", "deployment/web", "main=registry.example/web:9")
    kubectl.run("rollout", "restart", "deployment/web")
    found = kubectl.json("get", "deployment", "web")
    assert found["spec"]["replicas"] == 7
    assert found["metadata"]["labels"]["tier"] == "front"
    assert found["metadata"]["annotations"]["example.com/note"] == "hello"
    template = found["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "registry.example/web:9"
    assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]


def test_tables_look_like_those_of_a_cluster(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run("apply", "-f", "-", stdin=POD)
    deployments = kubectl.run("get", "deployments", "-o", "wide").splitlines()
    assert deployments[0].split() == [
        "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR",
    ]  # fmt: skip
    assert deployments[1].split()[:4] == ["web", "0/2", "0", "0"]
    pods = kubectl.run("get", "pods").splitlines()
    assert pods[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert pods[1].split()[:4] == ["lone", "0/1", "Pending", "0"]
    assert "deployment.apps/web" in kubectl.run("get", "all")
    assert kubectl.run("get", "pods", "-l", "app=other") == ""
    assert "lone" in kubectl.run("get", "pods", "-l", "app in (lone,other)", "-o", "name")
    selected = kubectl.run("get", "pods", "--field-selector=status.phase=Pending", "-o", "name")
    assert selected == "pod/lone\n"


def test_describe_and_explain(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "2 desired" in kubectl.run("describe", "deployment", "web")
    assert "image\t<string>" in kubectl.run("explain", "pod.spec.containers")
    assert "Active" in kubectl.run("describe", "namespace", kubectl.namespace)


def test_api_resources_and_permissions(kubectl: Kubectl) -> None:
    listed = kubectl.run("api-resources", "-o", "name").split()
    assert {"deployments.apps", "pods", "leases.coordination.k8s.io"} <= set(listed)
    assert kubectl.run("auth", "can-i", "create", "pods") == "yes\n"
    assert "[*]" in kubectl.run("auth", "can-i", "--list")


def test_create_sends_protobuf_and_is_understood(kubectl: Kubectl) -> None:
    kubectl.run("create", "configmap", "settings", "--from-literal=a=b")
    kubectl.run("create", "secret", "generic", "keys", "--from-literal=a=b")
    kubectl.run("create", "serviceaccount", "robot")
    assert kubectl.json("get", "configmap", "settings")["data"] == {"a": "b"}
    assert kubectl.json("get", "secret", "keys")["data"] == {"a": "Yg=="}
    refusal = kubectl.fail("create", "deployment", "web", "--image=x")
    assert "does not read protobuf bodies of kind Deployment" in refusal


def test_replace_needs_the_object_and_the_version(kubectl: Kubectl) -> None:
    assert "NotFound" in kubectl.fail("replace", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run("create", "-f", "-", stdin=DEPLOYMENT)
    assert "AlreadyExists" in kubectl.fail("create", "-f", "-", stdin=DEPLOYMENT)
    kubectl.run("replace", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replicas: 4"))
    stale = kubectl.json("get", "deployment", "web")
    kubectl.run("scale", "deployment/web", "--replicas=1")
    refusal = kubectl.fail("replace", "-f", "-", stdin=json.dumps(stale))
    assert "the object has been modified" in refusal
    kubectl.run("replace", "--force", "-f", "-", stdin=DEPLOYMENT)
    assert kubectl.json("get", "deployment", "web")["metadata"]["uid"] != stale["metadata"]["uid"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("replicas: two", 'must be of type integer: "string"'),
        ("replicas: -1", "spec.replicas: Invalid value: -1"),
        ("replicaz: 2", 'unknown field "spec.replicaz"'),
        ("replicas: 2\n  strategy: {type: Rolling}", 'Unsupported value: "Rolling"'),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_field(
    kubectl: Kubectl, wrong: str, text: str
) -> None:
    refusal = kubectl.fail("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", wrong))
    assert text in refusal


def test_selector_and_template_must_agree(kubectl: Kubectl) -> None:
    wrong = yaml.safe_load(DEPLOYMENT)
    wrong["spec"]["selector"]["matchLabels"] = {"app": "other"}
    refusal = kubectl.fail("apply", "-f", "-", stdin=yaml.safe_dump(wrong))
    assert "`selector` does not match template `labels`" in refusal


def _write_ready(store: Store, namespace: str) -> None:
    deployment = store.get(DEPLOYMENTS, namespace, "web")
    replicas = deployment["spec"]["replicas"]
    deployment["status"] = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
        "availableReplicas": replicas,
        "conditions": [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}
        ],
    }
    store.update(DEPLOYMENTS, namespace, "web", deployment, "status")


def test_wait_and_rollout_status_end_when_the_status_says_so(
    api: RunningApi, kubectl: Kubectl
) -> None:
    kubectl.run("apply", "-f", "-", stdin=DEPLOYMENT)
    waiting = subprocess.Popen(
        kubectl.command("wait", "deployment/web", "--for=condition=Available", "--timeout=30s"),
        env=kubectl.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.3)  # so that the wait sees the change, and not its result
    api.call(lambda store: _write_ready(store, kubectl.namespace))
    assert "condition met" in waiting.communicate(timeout=30)[0]
    assert "successfully rolled out" in kubectl.run("rollout", "status", "deployment/web")
    kubectl.run("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=2")
    kubectl.run("delete", "deployment", "web", "--wait=false")
    kubectl.run("wait", "deployment/web", "--for=delete", "--timeout=10s")


def test_a_watch_prints_every_change(kubectl: Kubectl) -> None:
    watching = subprocess.Popen(
        kubectl.command("get", "configmaps", "-w", "-o", "name", "--output-watch-events=false"),
        env=kubectl.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        kubectl.run("create", "configmap", "first")
        assert watching.stdout.readline() == "configmap/first\n"
        kubectl.run("create", "configmap", "second")
        assert watching.stdout.readline() == "configmap/second\n"
    finally:
        watching.kill()
        watching.communicate()


def test_delete_of_a_pod_on_a_node_waits_for_the_kubelet(api: RunningApi, kubectl: Kubectl) -> None:
    namespace = kubectl.namespace
    kubectl.run("apply", "-f", "-", stdin=POD)

    def bind(pod: Object) -> Object:
        pod["spec"]["nodeName"] = "here"
        return pod

    api.call(
        lambda store: store.update(
            PODS, namespace, "lone", bind(store.get(PODS, namespace, "lone"))
        )
    )
    kubectl.run("delete", "pod", "lone", "--wait=false", "--grace-period=20")
    marked = kubectl.json("get", "pod", "lone")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
    assert kubectl.run("get", "pod", "lone").splitlines()[1].split()[2] == "Terminating"
    api.call(lambda store: store.delete(PODS, namespace, "lone", grace_period_s=0))
    assert "NotFound" in kubectl.fail("get", "pod", "lone")


def test_an_object_that_is_only_a_name_can_be_applied(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-bare"
    manifest = f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"
    kubectl.run("apply", "--server-side", "-f", "-", stdin=manifest)
    assert kubectl.run("get", "namespace", name, "-o", "jsonpath={.status.phase}") == "Active"
    kubectl.run("delete", "namespace", name, "--timeout=10s")


def test_deleting_a_namespace_takes_its_content(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-inner"
    kubectl.run("create", "namespace", name)
    kubectl.run("-n", name, "create", "configmap", "content")
    kubectl.run("delete", "namespace", name, "--timeout=10s")
    assert "NotFound" in kubectl.fail("get", "namespace", name)
    assert "not found" in kubectl.fail("-n", name, "create", "configmap", "content")


def test_logs_say_why_there_are_none(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=POD)
    assert "does not have a host assigned" in kubectl.fail("logs", "lone")
    assert "container other is not valid for pod lone" in kubectl.fail(
        "logs", "lone", "-c", "other"
    )
    assert "does not offer exec" in kubectl.fail("exec", "lone", "--", "true")
