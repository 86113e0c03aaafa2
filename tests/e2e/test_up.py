"""The whole path: `octavo up -f examples/smollm2.yaml`, a real model, a killed engine, the demo."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.local_up import LocalUp, eventually, is_running, octavo_up, process_id

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "examples" / "smollm2.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    folder = tmp_path_factory.mktemp("up")
    with octavo_up(
        folder, "-f", str(MANIFEST), "--node", "nvidia.com/gpu=2", "--port", "18480"
    ) as started:
        yield started


def wait_ready(up: LocalUp, wait: str = "180s") -> None:
    up.kubectl("wait", "oisvc/smollm2", "--for=condition=Ready", f"--timeout={wait}")


def engine_pods(up: LocalUp) -> list[dict[str, Any]]:
    return up.pods("serving.octavo.dev/inferenceservice=smollm2")


def local_url(up: LocalUp) -> str:
    annotations = up.get("service", "smollm2")["metadata"]["annotations"]
    return str(annotations["local.octavo.dev/url"])


def chat(url: str, text: str = "Say hello.") -> dict[str, Any]:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))


def printed_row(up: LocalUp) -> list[str]:
    return up.kubectl("get", "oisvc", "smollm2", "--no-headers").split()


def test_a_manifest_becomes_an_answer(up: LocalUp) -> None:
    wait_ready(up)
    answer = chat(local_url(up))
    assert answer["choices"][0]["message"]["content"].strip()
    assert printed_row(up)[1:4] == ["True", "Serving", "1/1"]
    eventually(lambda: local_url(up) in up.output)
    assert "ready in" in up.kubectl("logs", "deploy/smollm2")


def test_kubectl_finds_nothing_to_change_in_what_up_applied(up: LocalUp) -> None:
    assert "unchanged" in up.kubectl("apply", "-f", str(MANIFEST))
    assert up.kubectl("diff", "-f", str(MANIFEST)) == ""


def test_a_killed_engine_is_told_and_comes_back(up: LocalUp) -> None:
    wait_ready(up)
    (pod,) = engine_pods(up)
    os.kill(process_id(pod), signal.SIGKILL)
    row = eventually(lambda: row if (row := printed_row(up))[1] == "False" else None)
    assert row[3] == "0/1"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        chat(local_url(up))
    wait_ready(up)
    assert chat(local_url(up))["choices"]
    (again,) = engine_pods(up)
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_killed_operator_comes_back_and_goes_on(up: LocalUp) -> None:
    wait_ready(up)
    (operator,) = up.get("pods", "-n", "octavo-system")["items"]
    os.kill(process_id(operator), signal.SIGKILL)
    up.kubectl("scale", "oisvc/smollm2", "--replicas=0")
    eventually(lambda: not engine_pods(up), wait_s=90)
    eventually(lambda: printed_row(up)[2] == "ScaledToZero", wait_s=30)
    up.kubectl("scale", "oisvc/smollm2", "--replicas=1")
    eventually(lambda: printed_row(up)[1] == "False", wait_s=30)
    wait_ready(up)


def test_a_missing_model_is_a_reason_with_a_next_action(up: LocalUp) -> None:
    service = {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "missing"},
        "spec": {
            "model": {"uri": "file:///no/such/model.gguf"},
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        },
    }
    up.apply(service)

    def told() -> dict[str, Any] | None:
        conditions = (up.get("oisvc", "missing").get("status") or {}).get("conditions") or []
        found = [item for item in conditions if item["reason"] == "ModelNotFound"]
        return dict(found[0]) if found else None

    condition = eventually(told, wait_s=60)
    assert condition["status"] == "False"
    assert condition["nextAction"]
    up.kubectl("delete", "oisvc", "missing")
    eventually(lambda: not up.pods("serving.octavo.dev/inferenceservice=missing"))


def test_what_asks_for_more_gpus_than_there_are_is_unschedulable(up: LocalUp) -> None:
    up.kubectl("apply", "-f", str(ROOT / "examples" / "gpu.yaml"))
    patch = '{"spec":{"replicas":3}}'
    up.kubectl("patch", "oisvc", "smollm2-gpu", "--type=merge", "-p", patch)
    selector = "serving.octavo.dev/inferenceservice=smollm2-gpu"

    def waiting() -> list[str]:
        return [
            condition["message"]
            for pod in up.pods(selector)
            for condition in pod["status"].get("conditions") or ()
            if condition.get("reason") == "Unschedulable"
        ]

    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    eventually(lambda: waiting() == [message], wait_s=30)
    up.kubectl("delete", "oisvc", "smollm2-gpu")
    eventually(lambda: not up.pods(selector), wait_s=40)


def test_deleting_it_takes_everything_along(up: LocalUp) -> None:
    up.kubectl("scale", "oisvc/smollm2", "--replicas=1")
    wait_ready(up)
    (pod,) = engine_pods(up)
    up.kubectl("delete", "oisvc", "smollm2")
    eventually(lambda: not engine_pods(up), wait_s=40)
    assert not is_running(process_id(pod))
    selector = "serving.octavo.dev/inferenceservice=smollm2"
    left = up.kubectl("get", "deploy,svc,rs,pods,endpointslices", "-l", selector, check=False)
    assert "No resources found" in left


def test_the_demo_answers_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo_local.demo", str(MANIFEST)],
        env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smollm2: Ready" in done.stdout
    assert "tokens/s" in done.stdout
    assert "curl http://127.0.0.1:" in done.stdout
    assert "kubectl" in done.stdout
    assert not (tmp_path / ".octavo" / "local" / "kubeconfig").exists()


def test_the_demo_says_why_it_fails(tmp_path: Path) -> None:
    text = MANIFEST.read_text().replace("Q4_1.gguf", "Q9_9.gguf")
    (tmp_path / "wrong.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "octavo_local.demo", str(tmp_path / "wrong.yaml")],
        env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Q9_9.gguf" in done.stderr
    assert "Next:" in done.stderr
