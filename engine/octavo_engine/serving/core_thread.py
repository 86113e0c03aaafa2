"""The engine's core in a thread of the server's process.

event loop                                core thread
──────────                                ───────────
commands ──► one thread-safe queue ─────► between two steps
AsyncEngine ◄── one call a step ────────── events
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from octavo_engine.serving.core_loop import CoreLoop
from octavo_engine.serving.core_messages import Command, CoreEvents, Stop
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.launch import (
    Launch,
    LaunchedCore,
    Load,
    LoadedEngine,
    Progress,
    describe_core,
)

_LOG = logging.getLogger(__name__)
_Argument = TypeVar("_Argument")


class CoreThread:
    """A CoreLink to a core that this process has loaded."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="octavo-core", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_events: Callable[[CoreEvents], None] | None = None
        self._on_death: Callable[[BaseException], None] | None = None
        self._died = False

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._died

    def start(
        self, on_events: Callable[[CoreEvents], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_events, self._on_death = on_events, on_death
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    async def stop(self, timeout_s: float) -> bool:
        if self._loop is None:
            return True  # it was never started
        self._commands.put(Stop())
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        assert self._on_events is not None
        assert self._on_death is not None
        on_events = self._on_events
        try:
            CoreLoop(
                self._core, receive=self._receive, send=lambda events: self._call(on_events, events)
            ).run()
        except BaseException as error:
            self._died = True
            _LOG.critical("the engine's thread died", exc_info=error)
            self._call(self._on_death, error)

    def _receive(self, wait: bool) -> Sequence[Command]:
        commands = []
        with contextlib.suppress(queue.Empty):
            commands.append(self._commands.get(block=wait))
            while True:
                commands.append(self._commands.get_nowait())
        return commands

    def _call(self, function: Callable[[_Argument], None], argument: _Argument) -> None:
        assert self._loop is not None
        # A loop that is closed has no request left that could be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)


def launch_in_thread(load: Load) -> Launch:
    """Load the engine in a thread of this process, and run it in another."""

    async def launch(progress: Progress) -> LaunchedCore:
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[LoadedEngine] = loop.create_future()

        def tell(callback: Callable[..., None], *arguments: object) -> None:
            # A loop that is closed belongs to a server that ended while its model loaded.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(callback, *arguments)

        def settle(set_outcome: Callable[[Any], None], outcome: object) -> None:
            if not loaded.done():
                set_outcome(outcome)

        def run() -> None:
            try:
                engine = load(lambda phase, share: tell(progress, phase, share))
            except BaseException as error:
                tell(settle, loaded.set_exception, error)
            else:
                tell(settle, loaded.set_result, engine)

        threading.Thread(target=run, name="octavo-load", daemon=True).start()
        engine = await loaded
        core = EngineCore(engine.scheduler, engine.runner, clock=time.monotonic)
        return LaunchedCore(core=describe_core(engine, core), link=CoreThread(core))

    return launch


def has_busy_threads() -> bool:
    """Whether a thread is still in native code that the interpreter must not be torn from."""
    return any(
        thread.name in ("octavo-core", "octavo-load") and thread.is_alive()
        for thread in threading.enumerate()
    )
