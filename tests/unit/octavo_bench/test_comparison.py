"""Ratios by round, and a verdict that chance cannot easily give."""

from collections.abc import Sequence

import pytest

from octavo_bench.comparison import Row, Verdict, compare, sign_test
from octavo_bench.figures import Summary, summarize
from octavo_bench.records import Record


def run_of(e2e_s: float, *, tokens: int = 10) -> Summary:
    record = Record(
        sent_s=0.0,
        ended_s=e2e_s,
        token_times_s=[e2e_s / 2, e2e_s],
        prompt_tokens=1,
        completion_tokens=tokens,
    )
    return summarize([record])


def row_of(figure: str, a: Sequence[float], b: Sequence[float]) -> Row:
    rows = compare([run_of(value) for value in a], [run_of(value) for value in b])
    return next(row for row in rows if row.figure == figure)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(5, 0, 0.0625), (0, 5, 0.0625), (4, 1, 0.375), (3, 2, 1.0), (0, 0, 1.0), (9, 1, 0.0214844)],
)
def test_sign_test_by_hand(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p, rel=1e-4)


def test_a_clear_difference_under_a_drift_that_is_larger_than_it() -> None:
    drift = [1.0, 2.0, 3.0, 1.5, 0.5]
    row = row_of("e2e_ms.p50", drift, [value * 0.8 for value in drift])
    assert row.verdict is Verdict.B_BETTER
    assert (row.ratio.median, row.ratio.low, row.ratio.high) == pytest.approx((0.8, 0.8, 0.8))
    assert (row.a.median, row.a.low, row.a.high) == pytest.approx((1500, 500, 3000))
    assert (row.b_wins, row.rounds) == (5, 5)


def test_more_tokens_a_second_is_better_and_more_milliseconds_is_not() -> None:
    fast, slow = [1.0] * 5, [2.0] * 5
    assert row_of("output_tokens_per_s", fast, slow).verdict is Verdict.A_BETTER
    assert row_of("e2e_ms.p50", fast, slow).verdict is Verdict.A_BETTER
    assert row_of("output_tokens_per_s", slow, fast).verdict is Verdict.B_BETTER


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], [0.9, 1.1, 0.9, 0.9, 0.9], Verdict.NOISE),
        ([1.0] * 5, [1.0] * 5, Verdict.NOISE),
        ([1.0] * 4, [0.5] * 4, Verdict.TOO_FEW),
        ([1.0], [0.1], Verdict.TOO_FEW),
    ],
)
def test_what_chance_could_have_done_is_no_difference(
    a: list[float], b: list[float], verdict: Verdict
) -> None:
    assert row_of("e2e_ms.p50", a, b).verdict is verdict


def test_a_figure_that_a_round_lacks_is_left_out() -> None:
    failed = summarize([Record(sent_s=0.0, ended_s=1.0, failure="http_500")])
    assert compare([run_of(1.0), failed], [run_of(1.0), run_of(1.0)]) == []
    only_one_token = [run_of(1.0, tokens=1)]
    figures = {row.figure for row in compare(only_one_token, only_one_token)}
    assert "e2e_ms.p99" in figures
    assert "tpot_ms.p50" not in figures
