"""The in-memory Kubernetes API for tests, and the real kubectl to drive it.

    def test_something(api: RunningApi, kubectl: Kubectl) -> None:
        kubectl.run("apply", "-f", "-", stdin=manifest)
        kubectl.json("get", "pods")

Tests in tests/e2e get the fixtures from its conftest.py; elsewhere, put this into a conftest.py:

    from support.api import api, kubectl

`running_api()` is the plain context manager for a test that wants a server of its own. The server
runs in a thread with its own event loop; `api.call(function)` runs a function of the Store there.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from octavo_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from octavo_local.apiserver.server import ApiServer, running_server
from octavo_local.apiserver.store import Store

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
CRD_PATH = REPOSITORY / "crds" / "inferenceservices.yaml"


def kubectl_path() -> str:
    """$KUBECTL (to try another version), the virtual environment's, or the first on the PATH."""
    beside = Path(sys.executable).parent / "kubectl"
    found = os.environ.get("KUBECTL") or (
        str(beside) if beside.exists() else shutil.which("kubectl")
    )
    if found is None:
        pytest.fail("kubectl is not installed; `make setup` installs it")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApi:
    """A server with our CRD installed; `kubeconfig` leads to it."""

    server: ApiServer
    store: Store
    kubeconfig: Path
    loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[[Store], T]) -> T:
        """Runs a function of the store in the server's loop, where alone it is safe."""

        async def run() -> T:
            return function(self.store)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)


@contextmanager
def running_api(directory: Path, *, install_crds: bool = True) -> Iterator[RunningApi]:
    """Starts a server in a thread and stops it, with every watch, at the end."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        store = Store()
        if install_crds:
            crd = yaml.safe_load(CRD_PATH.read_text())
            store.create(CUSTOM_RESOURCE_DEFINITIONS, None, crd)
        stop = asyncio.Event()
        async with running_server(store) as server:
            found.update(store=store, server=server, stop=stop, loop=asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found["error"] = error
            ready.set()
            raise

    thread = threading.Thread(target=work, name="api", daemon=True)
    thread.start()
    assert ready.wait(30), "the API server did not start"
    if "error" in found:
        raise found["error"]
    kubeconfig = directory / "kubeconfig"
    found["server"].write_kubeconfig(kubeconfig)
    try:
        yield RunningApi(
            server=found["server"],
            store=found["store"],
            kubeconfig=kubeconfig,
            loop=found["loop"],
        )
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(30)
        assert not thread.is_alive(), "the API server did not stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """Runs the real kubectl in one namespace."""

    kubeconfig: Path
    namespace: str = "default"
    path: str = field(default_factory=kubectl_path)

    def command(self, *arguments: str) -> list[str]:
        return [self.path, "--namespace", self.namespace, *arguments]

    def environment(self) -> dict[str, str]:
        home = str(self.kubeconfig.parent)
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": home}

    def try_run(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environment(),
            check=False,
        )

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """stdout of a kubectl that succeeded."""
        done = self.try_run(*arguments, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def fail(self, *arguments: str, stdin: str | None = None) -> str:
        """stderr of a kubectl that did not succeed."""
        done = self.try_run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json"))


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    with running_api(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def kubectl(api: RunningApi) -> Iterator[Kubectl]:
    """kubectl in a new namespace, which goes with the test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    api.call(lambda store: store.create(NAMESPACES, None, {"metadata": {"name": name}}))
    yield Kubectl(kubeconfig=api.kubeconfig, namespace=name)
    api.call(lambda store: store.delete(NAMESPACES, None, name))
