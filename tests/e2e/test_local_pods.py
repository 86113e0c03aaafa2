"""Pods as processes: Deployments, logs, probes, restarts, scheduling, by the real kubectl."""

import importlib.metadata
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.local_up import (
    BIN,
    LocalUp,
    eventually,
    is_running,
    make_deployment,
    make_pod,
    octavo_up,
    process_id,
)

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.environ["POD"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
print("serving on", os.environ["OCTAVO_HOST"], flush=True)
http.server.HTTPServer((os.environ["OCTAVO_HOST"], 8000), Handler).serve_forever()
"""
SLEEP = "import time; print('up', flush=True); time.sleep(300)"
SERVING: dict[str, Any] = {
    "ports": [{"name": "http", "containerPort": 8000}],
    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    folder = tmp_path_factory.mktemp("up")
    with octavo_up(
        folder, "--image", "tinker:1", "--node", "nvidia.com/gpu=1", "--port", "18080"
    ) as started:
        yield started


def make_service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]},
    }


def local_url(up: LocalUp, name: str) -> str:
    def look() -> str:
        annotations = up.get("service", name)["metadata"].get("annotations") or {}
        return str(annotations.get("local.octavo.dev/url") or "")

    return eventually(look)


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def test_a_deployment_serves_scales_rolls_over_and_ends(up: LocalUp) -> None:
    up.apply(make_deployment("web", 2, SERVER, **SERVING), make_service("web"))
    assert "successfully rolled out" in up.kubectl("rollout", "status", "deploy/web")
    first = up.pods("app=web")
    addresses = {pod["status"]["podIP"] for pod in first}
    assert len(addresses) == 2
    assert "127.0.0.1" not in addresses
    url = local_url(up, "web")
    assert {ask(url) for _ in range(6)} == {pod["metadata"]["name"] for pod in first}
    assert "serving on 127.77." in up.kubectl("logs", "deploy/web")

    up.kubectl("scale", "deploy/web", "--replicas=1")
    eventually(lambda: len(up.pods("app=web")) == 1)
    up.kubectl("rollout", "restart", "deploy/web")
    up.kubectl("rollout", "status", "deploy/web")
    eventually(lambda: len(up.pods("app=web")) == 1)
    (last,) = up.pods("app=web")
    assert last["metadata"]["name"] not in {pod["metadata"]["name"] for pod in first}
    assert not any(is_running(process_id(pod)) for pod in first)
    assert ask(url) == last["metadata"]["name"]
    assert "1/1" in up.kubectl("get", "deploy", "web")

    up.kubectl("delete", "deploy/web", "--wait")
    eventually(lambda: not up.pods("app=web"))
    assert not is_running(process_id(last))
    with pytest.raises(urllib.error.HTTPError, match="503"):
        ask(url)
    up.kubectl("delete", "service/web")


def test_a_log_is_followed_until_the_pod_ends(up: LocalUp) -> None:
    script = "import time\nfor n in range(3):\n    print('line', n, flush=True); time.sleep(0.3)"
    up.apply(make_pod("talker", script, spec={"restartPolicy": "Never"}))
    eventually(lambda: up.get("pod", "talker")["status"]["phase"] != "Pending")
    assert up.kubectl("logs", "-f", "talker") == "line 0\nline 1\nline 2\n"
    assert up.kubectl("logs", "--tail=1", "talker") == "line 2\n"
    assert up.kubectl("logs", "--since=1h", "talker") == "line 0\nline 1\nline 2\n"
    assert up.kubectl("logs", "--since-time=2100-01-01T00:00:00Z", "talker") == ""
    stamped = up.kubectl("logs", "--timestamps", "--tail=1", "talker")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z line 2\n", stamped)
    up.kubectl("wait", "pod/talker", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=10s")
    assert "Completed" in up.kubectl("get", "pod", "talker")
    up.kubectl("delete", "pod", "talker")


def test_a_pod_that_does_not_fit_waits_and_says_why_until_there_is_room(up: LocalUp) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    up.apply(make_pod("holder", SLEEP, **gpu))
    up.kubectl("wait", "pod/holder", "--for=condition=Ready", "--timeout=10s")
    up.apply(make_pod("waiter", SLEEP, **gpu))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    described = eventually(
        lambda: text if message in (text := up.kubectl("describe", "pod", "waiter")) else ""
    )
    assert "FailedScheduling" in described
    condition = up.get("pod", "waiter")["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert "Pending" in up.kubectl("get", "pod", "waiter")
    up.kubectl("delete", "pod", "holder")
    up.kubectl("wait", "pod/waiter", "--for=condition=Ready", "--timeout=10s")
    up.kubectl("delete", "pod", "waiter")


def test_a_crash_loop_backs_off_and_keeps_the_reason(up: LocalUp) -> None:
    script = (
        "import os, pathlib\n"
        "pathlib.Path('/dev/termination-log')\n"
        "pathlib.Path(os.environ['OCTAVO_TERMINATION_LOG']).write_text('no model here')\n"
        "raise SystemExit(78)"
    )
    up.apply(make_pod("crasher", script))
    described = eventually(
        lambda: (
            text if "CrashLoopBackOff" in (text := up.kubectl("describe", "pod", "crasher")) else ""
        )
    )
    assert "no model here" in described
    assert "78" in described
    assert "Back-off restarting failed container main" in described
    assert up.get("pod", "crasher")["status"]["containerStatuses"][0]["restartCount"] >= 1
    up.kubectl("delete", "pod", "crasher")


def test_without_a_message_the_end_of_the_log_stands_in(up: LocalUp) -> None:
    pod = make_pod(
        "brief",
        "raise SystemExit('the last word')",
        terminationMessagePolicy="FallbackToLogsOnError",
        spec={"restartPolicy": "Never"},
    )
    up.apply(pod)
    up.kubectl("wait", "pod/brief", "--for=jsonpath={.status.phase}=Failed", "--timeout=10s")
    state = up.get("pod", "brief")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (1, "Error")
    assert state["message"].strip() == "the last word"
    up.kubectl("delete", "pod", "brief")


def test_a_killed_process_is_started_again(up: LocalUp) -> None:
    up.apply(make_pod("victim", SLEEP))
    up.kubectl("wait", "pod/victim", "--for=condition=Ready", "--timeout=10s")
    killed = process_id(up.get("pod", "victim"))
    os.kill(killed, signal.SIGKILL)

    def restarted() -> dict[str, Any] | None:
        container = up.get("pod", "victim")["status"]["containerStatuses"][0]
        is_again = container["restartCount"] == 1 and container["ready"]
        return dict(container) if is_again else None

    container = eventually(restarted)
    last = container["lastState"]["terminated"]
    assert (last["exitCode"], last["signal"]) == (137, 9)
    assert process_id(up.get("pod", "victim")) != killed
    assert up.kubectl("logs", "--previous", "victim") == "up\n"
    up.kubectl("delete", "pod", "victim")


def test_readiness_moves_a_pod_in_and_out_of_its_service(up: LocalUp, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1}
    up.apply(
        make_pod(
            "moody", SERVER, **{**SERVING, "readinessProbe": {**probe, "failureThreshold": 1}}
        ),
        make_service("moody"),
    )

    def ready() -> list[bool]:
        slices = up.get("endpointslices", "-l", "kubernetes.io/service-name=moody")["items"]
        return [
            end["conditions"]["ready"] for item in slices for end in item.get("endpoints") or ()
        ]

    eventually(lambda: ready() == [False])
    flag.touch()
    eventually(lambda: ready() == [True])
    flag.unlink()
    eventually(lambda: ready() == [False])
    assert "Readiness probe failed" in up.kubectl("describe", "pod", "moody")
    up.kubectl("delete", "pod/moody", "service/moody")


def test_a_failing_liveness_probe_restarts_the_container(up: LocalUp, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    probe = {"exec": {"command": ["test", "!", "-e", str(sick)]}}
    up.apply(
        make_pod(
            "patient", SLEEP, livenessProbe={**probe, "periodSeconds": 1, "failureThreshold": 1}
        )
    )
    up.kubectl("wait", "pod/patient", "--for=condition=Ready", "--timeout=10s")
    sick.touch()
    eventually(
        lambda: up.get("pod", "patient")["status"]["containerStatuses"][0]["restartCount"] >= 1
    )
    sick.unlink()
    assert "failed liveness probe, will be restarted" in up.kubectl("describe", "pod", "patient")
    up.kubectl("delete", "pod", "patient")


def test_volumes_secrets_and_init_containers_reach_the_process(up: LocalUp) -> None:
    script = (
        "import os, pathlib, sys\n"
        "print(pathlib.Path(sys.argv[1]).read_text(), os.environ['KEY'], end='', flush=True)"
    )
    pod = make_pod("reader", script, args=["/data/note"])
    mount = [{"name": "work", "mountPath": "/data"}]
    main = pod["spec"]["containers"][0]
    main |= {
        "volumeMounts": mount,
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}],
    }
    writer = {
        "name": "writer",
        "image": "tinker:1",
        "command": ["sh", "-c", "echo -n from-init > /data/note"],
        "volumeMounts": mount,
    }
    pod["spec"] |= {
        "initContainers": [writer],
        "restartPolicy": "Never",
        "volumes": [{"name": "work", "emptyDir": {}}],
    }
    up.apply(pod)
    eventually(lambda: "CreateContainerConfigError" in up.kubectl("get", "pod", "reader"))
    up.kubectl("create", "secret", "generic", "keys", "--from-literal=k=s3cret")
    up.kubectl("wait", "pod/reader", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=10s")
    assert up.kubectl("logs", "reader", "-c", "main") == "from-init s3cret\n"
    up.kubectl("delete", "pod/reader", "secret/keys")


def test_an_image_that_is_not_here_is_refused_with_a_reason(up: LocalUp) -> None:
    pod = make_pod("stranger", SLEEP)
    pod["spec"]["containers"][0]["image"] = "nginx:1"
    up.apply(pod)
    eventually(lambda: "ImagePullBackOff" in up.kubectl("get", "pod", "stranger"))
    assert "octavo up --image nginx:1" in up.kubectl("describe", "pod", "stranger")
    up.kubectl("delete", "pod", "stranger")


def test_a_mount_over_the_installation_does_not_hide_the_entry_point(up: LocalUp) -> None:
    """A clone below /tmp, and pods that mount a volume at /tmp."""
    version = importlib.metadata.version("octavo")
    container = {
        "name": "main",
        "image": f"octavo-engine:{version}",
        "args": ["--version"],
        "volumeMounts": [{"name": "over", "mountPath": str(BIN.parents[1])}],
    }
    pod = make_pod("hidden", "")
    volume = {"name": "over", "emptyDir": {}}
    pod["spec"] |= {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [volume],
    }
    up.apply(pod)
    up.kubectl("wait", "pod/hidden", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert f"octavo {version}" in up.kubectl("logs", "hidden")


def test_a_namespace_goes_with_the_pods_that_run_in_it(up: LocalUp) -> None:
    """P36, without a finalizer: nothing of it stays, no process and no object."""
    up.kubectl("create", "namespace", "team-a")
    pod = make_pod("worker", SLEEP)
    pod["metadata"]["namespace"] = "team-a"
    up.apply(pod)
    up.kubectl("wait", "-n", "team-a", "pod/worker", "--for=condition=Ready", "--timeout=20s")
    process = process_id(up.get("pod", "worker", "-n", "team-a"))
    up.kubectl("delete", "namespace", "team-a", "--timeout=50s")
    assert not is_running(process)


def test_too_much_memory_ends_the_process(up: LocalUp) -> None:
    script = "import time; held = b'x' * (96 << 20); time.sleep(60)"
    limits = {"resources": {"limits": {"memory": "48Mi"}}}
    up.apply(make_pod("glutton", script, spec={"restartPolicy": "Never"}, **limits))
    up.kubectl("wait", "pod/glutton", "--for=jsonpath={.status.phase}=Failed", "--timeout=15s")
    assert "OOMKilled" in up.kubectl("get", "pod", "glutton")
    up.kubectl("delete", "pod", "glutton")


def test_a_second_one_on_the_same_state_is_refused(up: LocalUp) -> None:
    second = subprocess.run(
        [str(BIN / "octavo"), "up", "--state-dir", str(up.state)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert f"export KUBECONFIG={up.state}/kubeconfig" in second.stderr
    assert "--state-dir" in second.stderr
