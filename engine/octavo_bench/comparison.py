"""Two servers, measured in turns: medians, spread, and whether the difference is more than noise.

A machine's speed drifts, so only figures of the same round are compared: each round gives a
ratio B / A, and a sign test over the rounds says whether one side wins too often for chance.
Five rounds that all agree have p = 2 · 0.5⁵ = 0.0625.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from octavo_bench.figures import LATENCIES, Summary

SIGNIFICANT: Final = 0.1  # the largest p that is called a difference


class Verdict(StrEnum):
    A_BETTER = "A better"
    B_BETTER = "B better"
    NOISE = "within noise"
    TOO_FEW = "too few rounds"  # not even rounds that all agree would say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both. `ratio` is B / A by round; `b_wins` of `rounds` went to B."""

    figure: str
    higher_is_better: bool
    a: Spread
    b: Spread
    ratio: Spread
    rounds: int
    b_wins: int
    p: float
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(a: Sequence[Summary], b: Sequence[Summary]) -> list[Row]:
    """A row for each figure that every round of both has, and that is nowhere 0."""
    assert len(a) == len(b) > 0, "a round has both"
    rows = []
    for figure, higher in _figures():
        values_a = [_value(summary, figure) for summary in a]
        values_b = [_value(summary, figure) for summary in b]
        known_a = [value for value in values_a if value]
        known_b = [value for value in values_b if value]
        if len(known_a) == len(known_b) == len(a):
            rows.append(_row(figure, higher, known_a, known_b))
    return rows


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p of that many wins and losses, were both equally likely; ties are left out."""
    count = wins + losses
    ways = sum(math.comb(count, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * ways * 0.5**count)


def _figures() -> list[tuple[str, bool]]:
    latencies = [f"{name}.{point}" for name in LATENCIES for point in ("p50", "p99")]
    return [("output_tokens_per_s", True), *((name, False) for name in latencies)]


def _value(summary: Summary, figure: str) -> float | None:
    name, _, point = figure.partition(".")
    if not point:
        return float(getattr(summary, name))
    measured = summary.latencies.get(name)
    return None if measured is None else float(getattr(measured, point))


def _row(figure: str, higher: bool, a: Sequence[float], b: Sequence[float]) -> Row:
    ratios = [theirs / ours for ours, theirs in zip(a, b, strict=True)]
    above, below = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
    b_wins, a_wins = (above, below) if higher else (below, above)
    p = sign_test(b_wins, a_wins)
    if sign_test(len(ratios), 0) > SIGNIFICANT:
        verdict = Verdict.TOO_FEW
    elif p > SIGNIFICANT:
        verdict = Verdict.NOISE
    else:
        verdict = Verdict.B_BETTER if b_wins > a_wins else Verdict.A_BETTER
    return Row(
        figure=figure,
        higher_is_better=higher,
        a=_spread(a),
        b=_spread(b),
        ratio=_spread(ratios),
        rounds=len(ratios),
        b_wins=b_wins,
        p=p,
        verdict=verdict,
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median=statistics.median(values), low=min(values), high=max(values))
