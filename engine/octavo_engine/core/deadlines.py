"""Which requests must end by now, whatever they have."""

from heapq import heapify, heappop, heappush
from typing import Final

from octavo_engine.core.sequence import Sequence

_MOST_STALE: Final = 64


class Deadlines:
    """A heap of times. Requests that end earlier are swept out when they are the most of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence) -> None:
        if sequence.spec.deadline_s is not None:
            heappush(self._heap, (sequence.spec.deadline_s, sequence.request_id))

    def pop_due(self, now: float, live: dict[str, Sequence]) -> list[Sequence]:
        """Those of the live sequences whose time has come, each once."""
        due: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now:
            deadline_s, request_id = heappop(self._heap)
            sequence = live.get(request_id)
            if sequence is not None and sequence.spec.deadline_s == deadline_s:
                due.append(sequence)
        if len(self._heap) > 2 * len(live) + _MOST_STALE:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapify(self._heap)
        return due
