"""One process of a container: a session of its own, its output in a log, its end awaited."""

import asyncio
import contextlib
import os
import signal
import subprocess
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
        self,
        process: subprocess.Popen[bytes],
        output: asyncio.StreamReader,
        log: LogFile,
        guardian: Guardian,
    ) -> None:
        self.ended = asyncio.Event()
        self._process = process
        self._log = log
        self._guardian = guardian
        self._copying = asyncio.create_task(log.copy_from(output, time.time))

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
        process = _spawn(words, env, cwd)
        guardian.watch(process.pid)
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
        return cls(process, output, log, guardian)

    @property
    def pid(self) -> int:
        """Also the id of its session."""
        return self._process.pid

    async def wait(self) -> Exit:
        """Wait for the first process; whatever it started is killed then, as in a container.

        asyncio's own wait would go on until the last holder of the output has ended.
        """
        await _exited(self.pid)
        kill_session(self.pid)
        code = self._process.wait()
        await self._copying
        self._log.close()
        self._guardian.release(self.pid)
        self.ended.set()
        return Exit(code=128 - code if code < 0 else code, signal=max(0, -code))

    def terminate(self) -> None:
        """Ask the first process to end, as a container runtime does."""
        # It is not reaped before `wait` has seen its end, so the id cannot be another's by now.
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if not self.ended.is_set():
            signal_session(self.pid, signal.SIGKILL)


def _spawn(words: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*launcher(), *words],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


async def _exited(process_id: int) -> None:
    """Return when the process has ended; it stays to be reaped."""
    descriptor = os.pidfd_open(process_id)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def launcher() -> list[str]:
    """Words before a command that tie its life to this process."""
    return [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
