"""How prompts share a step's tokens, so that a long one neither stops the others nor is stopped.

Every prompt under way gets one token of each step, decoding sequences having had theirs. The rest:

    first in order of service   up to its share (half), whatever comes: nothing can starve it
    the others                  the shorter first, by powers of two; equals in order of service
    what is left                the first again

So a late short prompt overtakes long ones in the second pot, and it is small enough to be through
in a few steps. A long one that is overtaken grows old: when all before it are done it is the first.

The share holds against equals in priority, and against more urgent ones if the first is first
because it is old; against lesser ones the first takes all it can use.

    budget 512, one prompt of 16384 under way, twenty of 50 come: 256 + 5 of them + a bit of the
    sixth in each step, so the last begins in the fourth step and the long one never gets less.
"""

from dataclasses import dataclass

from octavo_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Claim:
    sequence: Sequence
    num_more: int  # tokens beyond the one that it gets anyway
    rank: tuple[int, int, tuple[float, float, int]]


def _make_claim(sequence: Sequence, need: int) -> _Claim:
    num_more = need - 1
    priority = sequence.spec.priority
    return _Claim(sequence, num_more, (priority, num_more.bit_length(), sequence.order))


class PrefillShare:
    """One step's budget for all that have more than one token to compute, and for newcomers."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._claims: list[_Claim] = []
        self._first: _Claim | None = None
        self._num_more = 0  # of all claims together

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, sequence: Sequence, need: int) -> None:
        """Count a sequence in; from now on it gets at least one token."""
        claim = _make_claim(sequence, need)
        self._claims.append(claim)
        self._num_more += claim.num_more
        if self._first is None or sequence.order < self._first.sequence.order:
            self._first = claim

    def has_room_for(self, sequence: Sequence, need: int, budget: int) -> bool:
        """Whether a newcomer would begin in earnest, and not just get its one token."""
        spare = budget - len(self._claims) - 1
        if spare < 0:
            return False
        claim, first = _make_claim(sequence, need), self._first
        if first is None or len(self._claims) == 1 or self._num_more + claim.num_more <= spare:
            return True
        if sequence.order < first.sequence.order:
            return True
        before = [c for c in self._claims if c is not first and c.rank < claim.rank]
        spare -= self._limit_of_first(first, [*before, claim], spare)
        return spare > sum(c.num_more for c in before)

    def grant(self, budget: int) -> list[tuple[Sequence, int]]:
        """Tokens for each, in the order of their adding; none gets more than it has to compute."""
        spare = budget - len(self._claims)
        assert spare >= 0, f"{len(self._claims)} sequences and {budget} tokens for them"
        first = self._first
        if first is None or self._num_more <= spare:
            return [(claim.sequence, claim.num_more + 1) for claim in self._claims]
        others = sorted((c for c in self._claims if c is not first), key=lambda c: c.rank)
        of_first = self._limit_of_first(first, others, spare)
        spare -= of_first
        granted: dict[int, int] = {}
        for claim in others:
            granted[id(claim)] = given = min(claim.num_more, spare)
            spare -= given
        granted[id(first)] = min(first.num_more, of_first + spare)
        return [(claim.sequence, granted[id(claim)] + 1) for claim in self._claims]

    def _limit_of_first(self, first: _Claim, others: list[_Claim], spare: int) -> int:
        # An old one comes before more urgent ones, and leaves them their half.
        has_rival = any(c.rank[0] <= first.rank[0] and c.num_more for c in others)
        limit = int(spare * self._share) if has_rival else spare
        return min(first.num_more, limit)
