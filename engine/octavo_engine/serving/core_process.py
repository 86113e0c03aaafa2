"""The engine's core in a process of its own, as the server sees it.

    server process                              core process
    ──────────────                              ────────────
    commands of one turn of the loop ──ZMQ───►  between two steps
    AsyncEngine ◄────────── one message a step  encoded and sent, then the next step

The socket lies in a folder that only this user may enter, for as long as it takes the core to
connect. The core dies with the server, by the kernel's hand (see `core_main`); the server learns of
the core's death from its process, and tells it to whoever started the link.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from octavo_engine.errors import CannotStart
from octavo_engine.serving.core_messages import (
    Command,
    Connected,
    CoreDescription,
    CoreEvents,
    CoreFailed,
    CoreMessage,
    Loaded,
    LoadFailed,
    LoadProgress,
    Start,
    Stop,
    decode_core_message,
    encode,
)
from octavo_engine.serving.launch import CoreLost, Launch, LaunchedCore, Progress
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings

_LOG = logging.getLogger(__name__)
# -P: as for the server's own process, the working directory is no place to import from.
CORE_COMMAND: Final = (sys.executable, "-P", "-m", "octavo_engine.core_main")
# A core that ends of itself has sent its last word; this is how long that may be under way.
_LAST_WORD_S: Final = 1.0


def launch_process(settings: EngineSettings, command: Sequence[str] = CORE_COMMAND) -> Launch:
    """Start a core process, have it load what the settings name, and run it there.

    `command` is called with the address of the socket and this process's id.
    """

    async def launch(progress: Progress) -> LaunchedCore:
        folder = _make_socket_folder()
        try:
            link = CoreProcess(folder, settings, progress)
            try:
                await link.spawn(command)
                return LaunchedCore(core=await link.loaded(), link=link)
            except BaseException:
                await link.kill()
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return launch


def _make_socket_folder() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="octavo-"))  # only this user may enter it
    except OSError as error:
        raise _no_folder(error.strerror or str(error)) from None
    if len(os.fsencode(folder / "core")) > zmq.IPC_PATH_MAX_LEN:
        folder.rmdir()
        raise _no_folder("its path is too long for a socket")
    return folder


def _no_folder(why: str) -> CannotStart:
    return CannotStart(
        Reason.INVALID_SETTING,
        f"The server found no folder for the socket to its engine: {tempfile.gettempdir()}: {why}.",
        "Set TMPDIR to a folder with a short path that may be written, or use --single-process.",
    )


class CoreProcess:
    """A CoreLink to a core process."""

    def __init__(self, folder: Path, settings: EngineSettings, progress: Progress) -> None:
        """`folder` holds the socket until the core has connected to it."""
        self._loop = asyncio.get_running_loop()
        self._address = f"ipc://{folder / 'core'}"
        self._settings = settings
        self._progress = progress
        self._loaded: asyncio.Future[CoreDescription] = self._loop.create_future()
        self._on_events: Callable[[CoreEvents], None] | None = None
        self._on_death: Callable[[BaseException], None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._last_word: asyncio.Future[str] = self._loop.create_future()
        self._outgoing: list[Command] = []
        self._stopping = False
        self._lost: CoreLost | None = None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        # Neither side waits for the other: what is under way is bounded by the requests.
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self._address)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._receive)

    async def spawn(self, command: Sequence[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *command, self._address, str(os.getpid()), stdin=asyncio.subprocess.DEVNULL
        )
        self._watcher = asyncio.create_task(self._watch(self._process))

    async def loaded(self) -> CoreDescription:
        """Wait for the core's word. Raises CannotStart, or CoreLost."""
        return await asyncio.shield(self._loaded)

    # -- the link ----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def start(
        self, on_events: Callable[[CoreEvents], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._on_events, self._on_death = on_events, on_death
        if self._lost is not None:
            self._loop.call_soon(on_death, self._lost)

    def send(self, command: Command) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(command)

    async def stop(self, timeout_s: float) -> bool:
        self._stopping = True
        self.send(Stop())
        if self._watcher is not None:
            await asyncio.wait([self._watcher], timeout=timeout_s)
        await self.kill()
        return True

    async def kill(self) -> None:
        """End the process now, if it still runs, and let go of everything."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._watcher is not None:
            await self._watcher
        if not self._socket.closed:
            self._receive()
            self._loop.remove_reader(self._descriptor)
            self._socket.close()
            self._context.term()

    # -- the socket --------------------------------------------------------------------------

    def _flush(self) -> None:
        commands, self._outgoing = self._outgoing, []
        if not self._socket.closed and self.is_alive:
            self._socket.send(encode(commands), zmq.NOBLOCK)
            # Sending may swallow the edge that tells of something to receive.
            self._receive()

    def _receive(self) -> None:
        """Take in all that has come: the descriptor tells of new messages once only."""
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._handle(decode_core_message(data))
            except Exception:
                # What it said is lost, so requests would wait for ever: better an end that is told.
                _LOG.critical("a word from the engine's core was not taken in", exc_info=True)
                if self.is_alive and self._process is not None:
                    self._process.kill()

    def _handle(self, message: CoreMessage) -> None:
        if isinstance(message, CoreEvents):
            assert self._on_events is not None, "a core says nothing before it is asked"
            self._on_events(message)
        elif isinstance(message, Connected):
            self._socket.send(encode(Start(self._settings)), zmq.NOBLOCK)
        elif isinstance(message, LoadProgress):
            self._progress(message.phase, message.share)
        elif isinstance(message, Loaded):
            if not self._loaded.done():
                self._loaded.set_result(message.core)
        elif isinstance(message, LoadFailed):
            failure = message.failure
            if not self._loaded.done():
                self._loaded.set_exception(
                    CannotStart(failure.reason, failure.message, failure.next_action)
                )
        elif isinstance(message, CoreFailed) and not self._last_word.done():
            self._last_word.set_result(message.error)

    # -- the process -------------------------------------------------------------------------

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if status >= 0:
            # What it sent before it ended comes first.
            words: list[asyncio.Future[Any]] = [self._last_word]
            words += [] if self._loaded.done() else [self._loaded]
            await asyncio.wait(words, timeout=_LAST_WORD_S, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping:
            return
        self._lost = CoreLost(self._explain(status))
        if not self._loaded.done():
            self._loaded.set_exception(self._lost)
        elif self._on_death is not None:
            self._on_death(self._lost)

    def _explain(self, status: int) -> str:
        if self._last_word.done():
            return self._last_word.result()
        if status == -signal.SIGKILL:
            return "its process was killed, as the kernel does when memory runs out"
        if status < 0:
            return f"its process ended by {signal.Signals(-status).name}"
        return f"its process ended with status {status}"
