"""Requests that wait for the prompt of another, to share its blocks instead of computing it again.

    source   prompt under way, or waiting itself ─► prompt computed ─► or ended
    fork     held here ───────────────────────────► into the queue    ► the eldest becomes source

A fork holds nothing while it waits, and nobody waits for a fork, so no two wait for each other.
"""

from collections.abc import Iterable, Iterator

from octavo_engine.core.sequence import Sequence


class Forks:
    """Held forks by the request id of their source, in the order of their adding."""

    def __init__(self) -> None:
        self._by_source: dict[str, list[Sequence]] = {}
        self._num_held = 0

    def __len__(self) -> int:
        return self._num_held

    def __iter__(self) -> Iterator[Sequence]:
        for forks in self._by_source.values():
            yield from forks

    def hold(self, fork: Sequence) -> None:
        assert fork.source is not None, f"{fork.request_id} is no fork"
        self._by_source.setdefault(fork.source.request_id, []).append(fork)
        self._num_held += 1

    def remove(self, fork: Sequence) -> None:
        """Forget a fork that has ended while it was held."""
        assert fork.source is not None, f"{fork.request_id} is no fork"
        forks = self._by_source[fork.source.request_id]
        forks.remove(fork)
        self._num_held -= 1
        if not forks:
            del self._by_source[fork.source.request_id]

    def release_computed(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Take out the forks of those sequences whose whole prompt is computed by now."""
        released: list[Sequence] = []
        if self._by_source:
            for sequence in sequences:
                if has_prompt(sequence):
                    released += self._by_source.pop(sequence.request_id, [])
        self._num_held -= len(released)
        return released

    def succeed(self, ended: Sequence) -> Sequence | None:
        """The eldest fork of a source that has ended before its prompt was computed, taken out.

        The other forks are held for that one from now on, so the prompt is still computed once.
        """
        forks = self._by_source.pop(ended.request_id, None)
        if forks is None:
            return None
        eldest, *others = forks
        eldest.source = None
        self._num_held -= 1
        if others:
            for fork in others:
                fork.source = eldest
            self._by_source.setdefault(eldest.request_id, [])[:0] = others
        return eldest


def has_prompt(sequence: Sequence) -> bool:
    """Whether the steps handed out so far compute its whole prompt, and its blocks still hold it.

    Steps execute in order, so a later step may read what is not computed at this moment.
    """
    return bool(sequence.block_ids) and sequence.num_computed_tokens >= sequence.num_prompt_tokens
