"""One process of a container: a session of its own, its output in a log, its end awaited."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from octavo_local.node import launch
from octavo_local.node.guardian import Guardian
from octavo_local.node.logs import LogFile
from octavo_local.node.sessions import MARK_VARIABLE, Family, kill_family, make_mark

# How long what is left of the output may take to be read once every process has ended.
_REST_OF_OUTPUT_S: Final = 1.0


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
        mark: str,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        log: LogFile,
        guardian: Guardian,
    ) -> None:
        self.ended = asyncio.Event()
        self.family = Family(process.pid, mark)
        self._process = process
        self._pipe = pipe
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
        """Raises OSError when the machine does not let it start."""
        mark = make_mark()
        process = _spawn(words, {**env, MARK_VARIABLE: mark}, cwd)
        try:
            guardian.watch(Family(process.pid, mark))
        except OSError:
            process.kill()  # nobody would end it, were this process killed
            process.wait()
            raise
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: protocol, process.stdout)
        return cls(process, mark, output, pipe, log, guardian)

    @property
    def pid(self) -> int:
        """Also the id of its session."""
        return self._process.pid

    async def wait(self) -> Exit:
        """Wait for the first process; whatever it started is killed then, as in a container.

        asyncio's own wait would go on until the last holder of the output has ended. That may be a
        process that escaped (see sessions.py), so the output is not awaited for long.
        """
        await _exited(self.pid)
        await asyncio.to_thread(kill_family, self.family)
        code = self._process.wait()
        await asyncio.wait([self._copying], timeout=_REST_OF_OUTPUT_S)
        self._copying.cancel()
        self._pipe.close()
        self._log.close()
        self._guardian.release(self.family)
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
            kill_family(self.family)


def _spawn(words: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*launcher(), *words],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except ValueError as error:  # a NUL in a word or a variable
        raise OSError(errno.EINVAL, f"the command or its environment: {error}") from error


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
