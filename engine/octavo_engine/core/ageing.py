"""Priorities count for a while only, so that nobody is kept waiting by others for ever.

Within `priority_wait_s` of its arrival a request is served by its priority. From then on it is old,
and the old come before all others, by arrival, whatever priorities they have. In each place:

    waiting                 at the head of the queue, behind older ones only
    computing its prompt    the first to have its share of each step
    answering               no victim of a preemption while there are younger ones

So a wait for a seat is bounded by `priority_wait_s` and by what came before. And preemptions for
the sake of priority cannot go round in a circle, since each request becomes the oldest in time.
"""

from octavo_engine.core.deadlines import Deadlines
from octavo_engine.core.sequence import Sequence, SequenceState
from octavo_engine.core.waiting_queue import OrderedSequences


class Ageing:
    def __init__(
        self, priority_wait_s: float, waiting: OrderedSequences, running: OrderedSequences
    ) -> None:
        self._priority_wait_s = priority_wait_s
        self._places = {SequenceState.WAITING: waiting, SequenceState.RUNNING: running}
        self._due = Deadlines()

    def add(self, sequence: Sequence) -> None:
        self._due.add(sequence.spec.arrival_s + self._priority_wait_s, sequence)

    def pass_time(self, now: float, live: dict[str, Sequence]) -> None:
        """Move those that have grown old by now to where they belong."""
        for sequence in self._due.pop_due(now, live):
            place = self._places.get(sequence.state)
            if place is not None:
                place.remove(sequence)
            sequence.grow_old()
            if place is not None:
                place.add(sequence)
