"""One process of a container: a session of its own, its output in a log, its end awaited."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from octavo_local.node import launch
from octavo_local.node.guardian import Guardian
from octavo_local.node.logs import LogFile
from octavo_local.node.sessions import kill_session, signal_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """`code` as a shell would give it: 128 + signal for a process that a signal ended."""

    code: int
    signal: int


class ContainerProcess:
    """A started process and everything that it starts."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: LogFile, guardian: Guardian
    ) -> None:
        self.ended = asyncio.Event()
        self._process = process
        self._log = log
        self._guardian = guardian
        assert process.stdout is not None
        self._copying = asyncio.create_task(log.copy_from(process.stdout, time.time))

    @classmethod
    async def start(
        cls,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: LogFile,
        guardian: Guardian,
    ) -> Self:
        process = await asyncio.create_subprocess_exec(
            *launcher(),
            *words,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        guardian.watch(process.pid)
        return cls(process, log, guardian)

    @property
    def pid(self) -> int:
        """Also the id of its session."""
        return self._process.pid

    async def wait(self) -> Exit:
        """Wait for the first process; whatever it started is killed then, as in a container."""
        code = await self._process.wait()
        kill_session(self.pid)
        await self._copying
        self._log.close()
        self._guardian.release(self.pid)
        self.ended.set()
        return Exit(code=128 - code if code < 0 else code, signal=max(0, -code))

    def terminate(self) -> None:
        """Ask the first process to end, as a container runtime does."""
        if self._process.returncode is None:
            try:
                os.kill(self.pid, signal.SIGTERM)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        signal_session(self.pid, signal.SIGKILL)


def launcher() -> list[str]:
    """Words before a command that tie its life to this process."""
    return [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
