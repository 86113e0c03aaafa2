"""Sequences in their order of service: the old, then by priority; then arrival, then adding.

Running and waiting sequences are both kept so. A preempted sequence thereby returns to the place
it came from, ahead of everything younger.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

from octavo_engine.core.sequence import Sequence

_by_order = attrgetter("order")


class OrderedSequences:
    """A sorted list: a few hundred entries, where shifting pointers beats any cleverer queue."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_by_order)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sequences, sequence.order, key=_by_order)
        assert self._sequences[index] is sequence, f"{sequence.request_id} is not here"
        del self._sequences[index]

    def __delitem__(self, index: int) -> None:
        del self._sequences[index]

    def pop_last(self) -> Sequence:
        return self._sequences.pop()

    def check_invariants(self) -> None:
        orders = [sequence.order for sequence in self._sequences]
        assert all(a < b for a, b in pairwise(orders)), "out of order"
