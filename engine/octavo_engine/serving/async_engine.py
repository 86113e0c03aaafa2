"""The engine's loop in a thread of its own, and its doors for asyncio.

    event loop                                   engine thread
    ──────────                                   ─────────────
    add, finish ──► one thread-safe queue ─────► between two steps
    a queue per request ◄── one call a step ◄─── updates of a step

The thread sleeps on the command queue while there is nothing to run. Should it die, every open
request is told, and so is whoever owns the process.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.errors import OctavoError, RequestError
from octavo_engine.serving.engine import EngineCore, StepReport

_LOG = logging.getLogger(__name__)


class EngineDied(OctavoError):
    """The engine thread ended by an error of ours; the process is about to exit."""


class Observer(Protocol):
    """Watches the engine from its own thread. What it raises is logged and goes no further."""

    def on_step(self, report: StepReport, stats: SchedulerStats) -> None: ...

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None: ...


@dataclass(frozen=True, slots=True)
class _Add:
    spec: RequestSpec


@dataclass(frozen=True, slots=True)
class _Finish:
    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _Admitted:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Refused:
    request_id: str
    error: RequestError


_Argument = TypeVar("_Argument")
_Command = _Add | _Finish | _Stop
_Event = SequenceUpdate | _Admitted | _Refused
_Item = SequenceUpdate | _Admitted | RequestError | EngineDied


class OpenRequest:
    """One request from the event loop's side."""

    def __init__(
        self, engine: "AsyncEngine", request_id: str, items: "asyncio.Queue[_Item]"
    ) -> None:
        self._engine = engine
        self._request_id = request_id
        self._items = items

    async def admitted(self) -> None:
        """Wait for the scheduler's word. Raises ContextTooLong or Overloaded, or EngineDied."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item

    async def updates(self) -> AsyncIterator[SequenceUpdate]:
        """What every step brings, to the one with the record. Raises EngineDied."""
        while True:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, SequenceUpdate):
                yield item
                if item.record is not None:
                    return

    def close(self, reason: FinishReason = FinishReason.ABORT) -> None:
        """Want no more of it. Changes nothing for a request that has ended."""
        self._engine.finish(self._request_id, reason)


class AsyncEngine:
    """Runs an EngineCore. `start` is called in the event loop that its requests live in."""

    def __init__(
        self,
        core: EngineCore,
        *,
        observers: list[Observer],
        on_death: Callable[[BaseException], None],
    ) -> None:
        """`on_death` is called in the event loop, after every open request was told."""
        self._core = core
        self._observers = observers
        self._on_death = on_death
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[_Item]] = {}
        self._idle = asyncio.Event()
        self._events: list[_Event] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._complained: set[str] = set()
        self.death: BaseException | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its present step; False when it did not end in time."""
        self._commands.put(_Stop())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self.death is None and self._thread.is_alive()

    @property
    def num_open_requests(self) -> int:
        return len(self._streams)

    def open(self, spec: RequestSpec) -> "OpenRequest":
        """Hand a request to the engine thread. Whoever opens it closes it. Raises EngineDied."""
        if not self.is_alive:
            raise EngineDied("the engine has stopped")
        items: asyncio.Queue[_Item] = asyncio.Queue()
        self._streams[spec.request_id] = items
        self._commands.put(_Add(spec))
        return OpenRequest(self, spec.request_id, items)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request that is still open: its blocks are free before the next step."""
        if self._forget(request_id):
            self._commands.put(_Finish(request_id, reason))

    async def wait_until_idle(self) -> None:
        """Return when no request is open; requests that come meanwhile count."""
        while self._streams:
            self._idle.clear()
            await self._idle.wait()

    def _forget(self, request_id: str) -> bool:
        known = self._streams.pop(request_id, None) is not None
        if not self._streams:
            self._idle.set()
        return known

    def abort_all(self) -> None:
        """End every open request with the reason ABORT; their readers are told."""
        for request_id, items in list(self._streams.items()):
            items.put_nowait(EngineDied("the server is shutting down"))
            self.finish(request_id, FinishReason.ABORT)

    # -- the engine thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._step()
                self._hand_over()
        except BaseException as error:
            self.death = error
            _LOG.critical("the engine thread died", exc_info=error)
            self._call(self._deliver_death, error)

    def _take_commands(self) -> bool:
        """Carry out what waits, and wait while there is nothing to run; False means: stop."""
        while True:
            try:
                command = self._commands.get(block=not self._core.has_work())
            except queue.Empty:
                return True
            if isinstance(command, _Stop):
                return False
            self._carry_out(command)
            if self._commands.empty():
                self._hand_over()

    def _carry_out(self, command: _Add | _Finish) -> None:
        if isinstance(command, _Add):
            request_id = command.spec.request_id
            try:
                self._core.add(command.spec)
                self._events.append(_Admitted(request_id))
            except RequestError as error:
                self._events.append(_Refused(request_id, error))
            return
        record = self._core.finish(command.request_id, command.reason)
        if record is not None:
            self._observe_finish(record)

    def _step(self) -> None:
        for report in self._core.step():
            stats = self._core.stats()
            self._observe(partial(_tell_step, report, stats))
            for update in report.updates:
                if update.record is not None:
                    self._observe_finish(update.record)
            self._events += report.updates

    def _observe_finish(self, record: RequestRecord) -> None:
        stats = self._core.stats()
        self._observe(partial(_tell_finish, record, stats))

    def _observe(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception as error:
                # Told once a kind: a step's trouble would fill the log with every further step.
                kind = f"{type(observer).__name__}: {type(error).__name__}"
                if kind not in self._complained:
                    self._complained.add(kind)
                    _LOG.exception("an observer of the engine failed; it is called further")

    def _hand_over(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._call(self._deliver, events)

    def _call(self, function: Callable[[_Argument], None], argument: _Argument) -> None:
        assert self._loop is not None, "the engine was not started"
        # A loop that is closed has no request left that could be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    # -- the event loop ----------------------------------------------------------------------

    def _deliver(self, events: list[_Event]) -> None:
        for event in events:
            items = self._streams.get(event.request_id)
            if items is None:
                continue
            items.put_nowait(event.error if isinstance(event, _Refused) else event)
            ended = isinstance(event, _Refused) or (
                isinstance(event, SequenceUpdate) and event.record is not None
            )
            if ended:
                self._forget(event.request_id)

    def _deliver_death(self, error: BaseException) -> None:
        streams, self._streams = self._streams, {}
        for items in streams.values():
            items.put_nowait(EngineDied("the engine has stopped"))
        self._idle.set()
        self._on_death(error)


def _tell_step(report: StepReport, stats: SchedulerStats, observer: Observer) -> None:
    observer.on_step(report, stats)


def _tell_finish(record: RequestRecord, stats: SchedulerStats, observer: Observer) -> None:
    observer.on_finish(record, stats)
