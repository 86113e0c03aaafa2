"""For which requests it is time by now: to end, whatever they have, or to grow old."""

from heapq import heapify, heappop, heappush
from typing import Final

from octavo_engine.core.sequence import Sequence

_MOST_STALE: Final = 64


class Deadlines:
    """A heap of times. Requests that end earlier are swept out when they are the most of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_s: float, sequence: Sequence) -> None:
        heappush(self._heap, (at_s, sequence.number, sequence.request_id))

    def pop_due(self, now: float, live: dict[str, Sequence]) -> list[Sequence]:
        """Those of the live sequences whose time has come, each once."""
        due: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now:
            _, number, request_id = heappop(self._heap)
            sequence = live.get(request_id)
            if sequence is not None and sequence.number == number:
                due.append(sequence)
        if len(self._heap) > 2 * len(live) + _MOST_STALE:
            self._heap = [entry for entry in self._heap if entry[2] in live]
            heapify(self._heap)
        return due
