"""The two processes of `octavo serve`: neither outlives the other, and signals end both well."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_wire.failures import Reason, parse_startup_failure
from support.tiny_gguf import write_tiny

pytestmark = pytest.mark.timeout(120)
_MAX_TOKENS = 4000  # seconds of answers, also of a tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny(path, readable=True, context_length=4096)
    return path


class Server:
    """`octavo serve` in a process group of its own, ready."""

    def __init__(self, model: Path, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.stderr = folder / "stderr"
        self.termination_log = folder / "termination"
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo_cli.main", "serve", str(model), "--port", "0",
                 "--kv-cache-memory", "64Mi", *flags],
                stderr=stderr,
                env={
                    **os.environ,
                    "OCTAVO_TERMINATION_LOG": str(self.termination_log),
                    "TMPDIR": str(folder),
                },
                process_group=0,
            )  # fmt: skip
        wait_for(lambda: "ready in" in self.said() or self.process.poll() is not None, 60)
        assert "listening on" in self.said(), self.said()
        self.url = self.said().split("listening on ")[1].split(",")[0]
        self.client = httpx.Client(base_url=self.url, timeout=20)

    def said(self) -> str:
        return self.stderr.read_text()

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def core(self) -> int:
        (pid,) = self.children()
        return pid

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": "tiny", "prompt": [5], "max_tokens": _MAX_TOKENS, "ignore_eos": True,
                "stream": True, **fields}  # fmt: skip

    def end(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def wait_for(condition: Callable[[], bool], within_s: float = 10) -> None:
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.02)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # dead; whoever adopted it has not looked yet


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Server]:
    running = Server(model, tmp_path, "--drain-accept-seconds", "0")
    try:
        yield running
    finally:
        running.end()


def test_the_server_has_no_torch_and_leaves_no_socket(server: Server) -> None:
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{server.core()}/maps").read_text()
    assert list(server.folder.glob("octavo-*")) == []


def test_i4_a_killed_core_ends_streams_with_an_error_and_the_server(server: Server) -> None:
    with server.client.stream("POST", "/v1/completions", json=server.body()) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(server.core(), signal.SIGKILL)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert server.process.wait(10) == 1
    assert "killed" in server.said()
    assert "Traceback" not in server.said()
    failure = parse_startup_failure(server.termination_log.read_text())
    assert failure is not None
    assert failure.reason is Reason.INTERNAL_ERROR


def test_a_killed_server_leaves_no_core(server: Server) -> None:
    core = server.core()
    server.process.kill()
    server.process.wait()
    wait_for(lambda: is_gone(core), 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_lets_answers_finish(
    server: Server, number: signal.Signals
) -> None:
    """Ctrl-C in a terminal, and runtimes that signal every process of a container."""
    core = server.core()
    wanted = server.body(max_tokens=300)
    with server.client.stream("POST", "/v1/completions", json=wanted) as response:
        lines = response.iter_lines()
        next(lines)
        os.killpg(server.process.pid, number)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(10) == 0
    assert is_gone(core)
    assert "Traceback" not in server.said()


def test_a_second_signal_ends_both_at_once(server: Server) -> None:
    core = server.core()
    with server.client.stream("POST", "/v1/completions", json=server.body()) as response:
        next(response.iter_lines())
        os.killpg(server.process.pid, signal.SIGINT)
        wait_for(lambda: "shutting down" in server.said())
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(5) == 128 + signal.SIGTERM
    assert is_gone(core)
    assert "Traceback" not in server.said()


def test_one_process_serves_the_same(model: Path, tmp_path: Path, server: Server) -> None:
    wanted = server.body(stream=False, max_tokens=40, temperature=0)
    apart = server.client.post("/v1/completions", json=wanted).json()["choices"]
    together = Server(model, tmp_path, "--single-process")
    try:
        assert together.children() == []
        assert together.client.post("/v1/completions", json=wanted).json()["choices"] == apart
    finally:
        together.end()


def test_importing_the_server_imports_no_torch() -> None:
    code = (
        "import sys; import octavo_engine.__main__, octavo_engine.serving.server;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
