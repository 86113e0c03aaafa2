"""How `octavo up` ends: by Ctrl-C, by kill -9, by a wrong manifest."""

import signal
import subprocess
from pathlib import Path

import pytest

from support.local_up import (
    BIN,
    LocalUp,
    eventually,
    is_running,
    make_pod,
    octavo_up,
    process_id,
)

# Ignores SIGTERM, and has a child in a session of its own.
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""


def start_stubborn(up: LocalUp) -> list[int]:
    """The processes of a pod: the container's and its child."""
    up.apply(make_pod("stubborn", STUBBORN))
    up.kubectl("wait", "pod/stubborn", "--for=condition=Ready", "--timeout=10s")
    child = eventually(lambda: up.kubectl("logs", "stubborn").strip())
    pids = [process_id(up.get("pod", "stubborn")), int(child)]
    operator = up.get("pods", "-n", "octavo-system")["items"]
    eventually(lambda: all(map(is_running, pids)))
    return pids + [process_id(pod) for pod in operator]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -9)]
)
def test_no_process_survives(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with octavo_up(tmp_path, "--image", "tinker:1", "--port", "18380") as up:
        pids = start_stubborn(up)
        assert (up.state / "kubeconfig").stat().st_mode & 0o777 == 0o600
        assert up.end(number) == status, up.output
        eventually(lambda: not any(map(is_running, pids)))
        if number is not signal.SIGKILL:
            assert not (up.state / "kubeconfig").exists()
            assert not (up.state / "pods").exists()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            "apiVersion: serving.octavo.dev/v1alpha1\nkind: InferenceService\n"
            "metadata: {name: x}\nspec: {model: {uri: 'ftp://x'}}\n",
            "must start with package:// or file:///",
        ),
        (
            "apiVersion: serving.octavo.dev/v1alpha1\nkind: InferenceService\n"
            "metadata: {name: x}\nspec: {model: {uri: 'file:///x', nmae: y}}\n",
            "nmae",
        ),
        ("apiVersion: v1\nkind: Widget\nmetadata: {name: x}\n", 'no matches for kind "Widget"'),
        ("just text\n", "is no Kubernetes object"),
        ("apiVersion: v1\nkind: Pod\n", "has no metadata.name"),
    ],
)
def test_a_wrong_manifest_ends_it_with_the_reason(
    tmp_path: Path, manifest: str, message: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(manifest)
    done = subprocess.run(
        [str(BIN / "octavo"), "up", "--state-dir", str(tmp_path / "state"), "-f", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert str(path) in done.stderr


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with octavo_up(tmp_path, "--image", "tinker:1", "--port", "18380") as up:
        pod = make_pod("slow", STUBBORN)
        pod["spec"]["terminationGracePeriodSeconds"] = 60
        up.apply(pod)
        up.kubectl("wait", "pod/slow", "--for=condition=Ready", "--timeout=10s")
        child = int(eventually(lambda: up.kubectl("logs", "slow").strip()))
        up.process.send_signal(signal.SIGINT)
        eventually(lambda: "Stopping" in up.output)
        assert is_running(child)
        # Its status tells that it did not wait: after the grace period it would be 0.
        assert up.end(signal.SIGINT) == 130
        eventually(lambda: not is_running(child))
        assert not (up.state / "kubeconfig").exists()
