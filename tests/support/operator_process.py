"""The operator as a process of its own, and a hand that plays kubelet and Deployment controller."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import DEPLOYMENTS, PODS
from octavo_local.apiserver.store import Store
from support.api import RunningApi

LEASE_DURATION_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProcess:
    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def health_port(self) -> int:
        found = wait_for(lambda: re.search(r"health endpoint on \S+:(\d+)", self.text()))
        return int(found[1])


def wait_for(look: Callable[[], Any], *, timeout_s: float = 20, what: str = "") -> Any:
    """The first truthy answer of `look`; fails when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain {what}"
        time.sleep(0.02)
    return found


@contextmanager
def running_operator(
    kubeconfig: Path, log: Path, *flags: str, identity: str = "operator-0", lead: bool = True
) -> Iterator[OperatorProcess]:
    """An operator; with `lead` it holds the Lease when this yields. Killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "octavo_operator"),
                *("--health-host=127.0.0.1", "--health-port=0", f"--identity={identity}"),
                f"--lease-duration-s={LEASE_DURATION_S}",
                *flags,
            ],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    operator = OperatorProcess(process=process, log=log)
    try:
        if lead:
            wait_for(lambda: f"{identity} holds lease" in operator.text(), what=operator.text())
        yield operator
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Does to one namespace what controllers and kubelets would."""

    api: RunningApi
    namespace: str

    def deployment(self, name: str) -> dict[str, Any] | None:
        def look(store: Any) -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = store.get(DEPLOYMENTS, self.namespace, name)
            except ApiError:
                return None
            return found

        return self.api.call(look)

    def start_pod(self, service: str, pod: str = "p0") -> None:
        """A pod made from the Deployment's present template."""
        deployment = wait_for(lambda: self.deployment(service), what="for the Deployment")
        template = deployment["spec"]["template"]
        made = {
            "metadata": {"name": pod, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        self.api.call(lambda store: store.create(PODS, self.namespace, made))

    def set_pod(self, pod: str, *, ready: bool = False, **engine: Any) -> None:
        """The kubelet's word on a pod; keywords are fields of the engine container's status."""
        status = {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            "containerStatuses": [
                {
                    **{"name": "engine", "image": "i", "imageID": "i"},
                    **{"ready": ready, "restartCount": 0, **engine},
                }
            ],
        }

        def write(store: Store) -> None:
            obj = store.get(PODS, self.namespace, pod) | {"status": status}
            store.update(PODS, self.namespace, pod, obj, "status")

        self.api.call(write)

    def delete_pod(self, pod: str) -> None:
        self.api.call(lambda store: store.delete(PODS, self.namespace, pod, grace_period_s=0))
