"""`octavo up` as a process of its own, driven by the real kubectl."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BIN = Path(sys.executable).parent
IMAGE = "tinker:1"  # admitted by name: its pods run their own commands


class LocalUp:
    """A running `octavo up` and the kubectl that talks to it."""

    def __init__(self, process: subprocess.Popen[str], state: Path, output: Path) -> None:
        self.process = process
        self.state = state
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """Standard output; with `check` False both streams, whatever the exit status."""
        done = subprocess.run(
            [str(BIN / "kubectl"), *args],
            input=stdin,
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        if not check:
            return done.stdout + done.stderr
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def env(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.state / "kubeconfig")}

    def get(self, *args: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", *args, "-o", "json")))

    def apply(self, *objects: dict[str, Any]) -> None:
        text = "\n---\n".join(json.dumps(item) for item in objects)
        self.kubectl("apply", "-f", "-", stdin=text)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        return list(self.get("pods", "-l", selector)["items"])

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=30)


@contextmanager
def octavo_up(folder: Path, *args: str) -> Iterator[LocalUp]:
    """Start it, wait until it serves; end it with Ctrl-C."""
    folder.mkdir(parents=True, exist_ok=True)
    state, output = folder / "state", folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [str(BIN / "octavo"), "up", "--state-dir", str(state), *args],
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    up = LocalUp(process, state, output)
    try:
        eventually(lambda: "export KUBECONFIG" in up.output or process.poll() is not None, 60)
        assert process.poll() is None, up.output
        yield up
    finally:
        if process.poll() is None:
            up.end()


def eventually(look: Callable[[], T], wait_s: float = 20, every_s: float = 0.1) -> T:
    """The first true value that `look` gives; fails when there is none in time."""
    deadline = time.monotonic() + wait_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"still {found!r} after {wait_s} s"
        time.sleep(every_s)


def process_id(pod: dict[str, Any]) -> int:
    """The process of a pod's first container."""
    container = pod["status"]["containerStatuses"][0]
    found = re.fullmatch(r"process://(\d+)", container["containerID"])
    assert found, container
    return int(found[1])


def is_running(pid: int) -> bool:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def make_pod(name: str, script: str, **container: Any) -> dict[str, Any]:
    """A pod that runs a Python script."""
    spec = container.pop("spec", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [
                {"name": "main", "image": IMAGE, "command": ["python", "-c", script], **container}
            ],
            **spec,
        },
    }


def make_deployment(name: str, replicas: int, script: str, **container: Any) -> dict[str, Any]:
    pod = make_pod(name, script, **container)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
        },
    }
