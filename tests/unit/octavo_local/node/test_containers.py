"""A container that cannot be started says why, and starts once it can."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo_local.node.backoff import Backoff
from octavo_local.node.containers import Container, Launch
from octavo_local.node.guardian import Guardian
from octavo_local.node.sessions import SharedTable
from octavo_local.node.status import Terminated, Waiting


class FakePod:
    """Its first `prepare` is as told, the next one starts `true`."""

    pod_ip, grace_s = "127.0.0.1", 1.0

    def __init__(self, directory: Path, first: Launch | OSError) -> None:
        self._directory = directory
        self._first: Launch | OSError | None = first
        self.waited_for: list[Waiting] = []
        self.warnings: list[str] = []
        self.container: Container | None = None

    def prepare(self, container: Mapping[str, Any]) -> Launch:
        first, self._first = self._first, None
        if isinstance(first, OSError):
            raise first
        return first or make_launch(self._directory, "true")

    def changed(self) -> None:
        assert self.container is not None
        if isinstance(self.container.record.state, Waiting):
            self.waited_for.append(self.container.record.state)

    def say(
        self, container: Mapping[str, Any], reason: str, message: str, *, is_warning: bool = False
    ) -> None:
        if is_warning:
            self.warnings.append(message)


def make_launch(directory: Path, word: str, cwd: Path | None = None) -> Launch:
    env = {"PATH": os.environ["PATH"]}
    log = directory / "termination-log"
    return Launch(words=[word], env=env, cwd=cwd or directory, termination_log=log)


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    started = Guardian.start()
    yield started
    started.close()


@pytest.mark.parametrize("case", ["prepare", "too long", "no folder"])
async def test_an_error_of_the_system_is_told_and_the_start_tried_again(
    tmp_path: Path, guardian: Guardian, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("octavo_local.node.containers._CONFIG_RETRY_S", 0.0)
    first, message = {
        "prepare": (PermissionError(13, "Permission denied", "/data"), "Permission denied"),
        "too long": (make_launch(tmp_path, "x" * 3_000_000), "Argument list too long"),
        "no folder": (make_launch(tmp_path, "true", tmp_path / "gone"), "No such file"),
    }[case]
    assert isinstance(first, Launch | OSError)
    pod = FakePod(tmp_path, first)
    container = Container(
        {"name": "main", "image": "i:1"},
        pod,
        restart_policy="Never",
        directory=tmp_path / "logs",
        guardian=guardian,
        processes=SharedTable(),
        backoff=Backoff(),
    )
    pod.container = container
    async with asyncio.timeout(30):
        await container.run()
    assert [state.reason for state in pod.waited_for] == ["CreateContainerError"]
    assert message in pod.waited_for[0].message
    assert len(pod.warnings) == 1
    assert message in pod.warnings[0]
    assert isinstance(container.record.state, Terminated)
    assert container.record.state.exit_code == 0
    assert container.previous_log is None
