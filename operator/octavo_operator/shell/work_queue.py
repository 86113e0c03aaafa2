"""Keys to look at: each is handed to one worker at a time, and never lost meanwhile."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from typing import Final, NamedTuple


class Key(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# A burst of pod events makes one look, not ten.
MIN_INTERVAL_S: Final = 0.2


class WorkQueue:
    """Keys and the times from which they are due. `clock` gives seconds that only grow.

    add ──► due times ──► get ──► (one worker) ──► done
                ▲                                   │
                └── added meanwhile, or later ──────┘
    """

    def __init__(self, clock: Callable[[], float], min_interval_s: float = MIN_INTERVAL_S) -> None:
        self._clock = clock
        self._min_interval_s = min_interval_s
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._working: set[Key] = set()
        self._handed_out: dict[Key, float] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Look at `key` after that time at the latest; an earlier time that stands is kept."""
        due = self._clock() + after_s
        if key in self._handed_out:
            due = max(due, self._handed_out[key] + self._min_interval_s)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    async def get(self) -> Key:
        """The next key that is due and in nobody's hands."""
        while True:
            wait_s = self._next_wait_s()
            if wait_s is not None and wait_s <= 0:
                _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._working.add(key)
                self._handed_out[key] = self._clock()
                return key
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def done(self, key: Key) -> None:
        """The worker has finished; what was added meanwhile becomes available."""
        self._working.discard(key)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], key))
        self._changed.set()

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that exists no more; call before `done`."""
        self._handed_out.pop(key, None)

    def _next_wait_s(self) -> float | None:
        """Seconds until a key is due; None when there is none. Drops outdated entries."""
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) == due and key not in self._working:
                return due - self._clock()
            heapq.heappop(self._heap)  # superseded; or in work, and pushed again by `done`
        return None
