"""The engine as the event loop sees it: requests are opened, read and closed here.

    answers ── open, close ──► AsyncEngine ── commands ──► CoreLink ──► core
    answers ◄─ a queue each ── AsyncEngine ◄─ events, once a step ───── core

The core runs behind a link, in a thread of this process (`core_thread`) or in a process of its own
(`core_process`); nothing here depends on which. Should it die, every open request is told, and so
is whoever owns the server. Observers are called here, so they see what the answers see.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.errors import OctavoError, RequestError
from octavo_engine.serving.core_messages import Add, Command, CoreEvents, Finish, StepSummary

_LOG = logging.getLogger(__name__)


class EngineDied(OctavoError):
    """The core ended by an error of ours, or was killed; the process is about to exit."""


class Observer(Protocol):
    """Watches the engine. What it raises is logged and goes no further."""

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None: ...

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None: ...


class CoreLink(Protocol):
    """The way to a core that is loaded. Used from the event loop."""

    @property
    def is_alive(self) -> bool: ...

    def start(
        self, on_events: Callable[[CoreEvents], None], on_death: Callable[[BaseException], None]
    ) -> None:
        """Begin to call back, in the event loop that runs now; `on_death` is the last call."""
        ...

    def send(self, command: Command) -> None:
        """Hand a command over; nothing comes of it when the core has died."""
        ...

    async def stop(self, timeout_s: float) -> bool:
        """End the core after its present step; False when it still runs."""
        ...


class _Admitted:
    pass


_ADMITTED = _Admitted()
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
    """Belongs to the event loop in which it is started."""

    def __init__(
        self,
        link: CoreLink,
        *,
        stats: SchedulerStats,
        observers: list[Observer],
        on_death: Callable[[BaseException], None],
    ) -> None:
        """`stats`: of the core before it starts. `on_death` is called after every open request was
        told."""
        self._link = link
        self._observers = observers
        self._on_death = on_death
        self._streams: dict[str, asyncio.Queue[_Item]] = {}
        self._idle = asyncio.Event()
        self._complained: set[str] = set()
        self.stats = stats  # as of the last event
        self.death: BaseException | None = None

    def start(self) -> None:
        self._link.start(self._deliver, self._deliver_death)

    async def stop(self, timeout_s: float) -> bool:
        """End the core after its present step; False when it did not end in time."""
        return await self._link.stop(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self.death is None and self._link.is_alive

    @property
    def num_open_requests(self) -> int:
        return len(self._streams)

    def open(self, spec: RequestSpec) -> OpenRequest:
        """Hand a request to the core. Whoever opens it closes it. Raises EngineDied."""
        if not self.is_alive:
            raise EngineDied("the engine has stopped")
        items: asyncio.Queue[_Item] = asyncio.Queue()
        self._streams[spec.request_id] = items
        self._link.send(Add(spec))
        return OpenRequest(self, spec.request_id, items)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request that is still open: its blocks are free before the next step."""
        if self._forget(request_id):
            self._link.send(Finish(request_id, reason))

    async def wait_until_idle(self) -> None:
        """Return when no request is open; requests that come meanwhile count."""
        while self._streams:
            self._idle.clear()
            await self._idle.wait()

    def abort_all(self) -> None:
        """End every open request with the reason ABORT; their readers are told."""
        for request_id, items in list(self._streams.items()):
            items.put_nowait(EngineDied("the server is shutting down"))
            self.finish(request_id, FinishReason.ABORT)

    def _forget(self, request_id: str) -> bool:
        known = self._streams.pop(request_id, None) is not None
        if not self._streams:
            self._idle.set()
        return known

    def _deliver(self, events: CoreEvents) -> None:
        self.stats = events.stats
        for request_id in events.admitted:
            self._put(request_id, _ADMITTED)
        for refusal in events.refused:
            self._put(refusal.request_id, refusal.to_error())
            self._forget(refusal.request_id)
        for step in events.steps:
            self._observe(partial(_tell_step, step, events.stats))
            for update in step.updates:
                self._put(update.request_id, update)
                if update.record is not None:
                    self._forget(update.request_id)
                    self._observe(partial(_tell_finish, update.record, events.stats))
        for record in events.ended:
            self._observe(partial(_tell_finish, record, events.stats))

    def _put(self, request_id: str, item: _Item) -> None:
        items = self._streams.get(request_id)
        if items is not None:
            items.put_nowait(item)

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

    def _deliver_death(self, error: BaseException) -> None:
        self.death = error
        streams, self._streams = self._streams, {}
        for items in streams.values():
            items.put_nowait(EngineDied("the engine has stopped"))
        self._idle.set()
        self._on_death(error)


def _tell_step(step: StepSummary, stats: SchedulerStats, observer: Observer) -> None:
    observer.on_step(step, stats)


def _tell_finish(record: RequestRecord, stats: SchedulerStats, observer: Observer) -> None:
    observer.on_finish(record, stats)
