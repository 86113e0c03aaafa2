"""Percentiles, rates and failures, from records written by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from octavo_bench.figures import distribution, percentile, summarize
from octavo_bench.records import Failure, Record

GOOD = Record(
    sent_s=10.0,
    ended_s=10.9,
    token_times_s=[10.2, 10.3, 10.6],
    prompt_tokens=8,
    completion_tokens=5,
    cached_tokens=4,
    finish_reason="length",
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.5),
        ([1.0, 2.0, 3.0, 4.0], 1.0, 4.0),
        ([1.0, 2.0, 3.0, 4.0], 0.0, 1.0),
    ],
)
def test_percentiles_by_hand(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_percentiles_are_those_of_numpy() -> None:
    chance = random.Random(0)
    for count in (1, 2, 3, 10, 101):
        values = [chance.expovariate(1) for _ in range(count)]
        found = distribution(values)
        expected = np.percentile(values, [50, 90, 99])
        assert [found.p50, found.p90, found.p99] == pytest.approx(list(expected))
        assert (found.mean, found.max) == (pytest.approx(np.mean(values)), max(values))


def test_latencies_of_one_request() -> None:
    measured = summarize([GOOD]).latencies
    assert measured["ttft_ms"].p50 == pytest.approx(200)
    assert measured["itl_ms"].count == 2
    assert (measured["itl_ms"].p50, measured["itl_ms"].max) == pytest.approx((200, 300))
    assert measured["tpot_ms"].p50 == pytest.approx(100), "400 ms for the 4 tokens after the first"
    assert measured["e2e_ms"].p50 == pytest.approx(900)


def test_rates_are_over_the_whole_run_and_count_what_went_well() -> None:
    failed = replace(GOOD, sent_s=11.0, ended_s=12.0, failure="http_429")
    cut = replace(GOOD, sent_s=11.0, ended_s=11.5, failure=Failure.DISCONNECTED)
    summary = summarize([GOOD, failed, failed, cut])
    assert (summary.requests, summary.succeeded) == (4, 1)
    assert summary.failures == {"http_429": 2, "disconnected": 1}
    assert summary.duration_s == pytest.approx(2.0)
    assert summary.output_tokens_per_s == pytest.approx(2.5)
    assert summary.total_tokens_per_s == pytest.approx(6.5)
    assert summary.requests_per_s == pytest.approx(0.5)
    assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (8, 5, 4)
    assert summary.finish_reasons == {"length": 1}
    assert summary.latencies["e2e_ms"].count == 1


def test_only_failures_is_a_summary_too() -> None:
    summary = summarize([replace(GOOD, failure="connect", ended_s=10.0)])
    assert (summary.duration_s, summary.output_tokens_per_s) == (0.0, 0.0)
    assert summary.latencies == {}
    assert summary.cached_tokens is None


def test_without_usage_chunks_are_counted_and_it_is_said() -> None:
    summary = summarize([replace(GOOD, completion_tokens=None, prompt_tokens=None)])
    assert summary.output_tokens == 3
    assert summary.tokens_are_counted_by_chunk
    assert not summarize([GOOD]).tokens_are_counted_by_chunk


def test_whole_answers_have_an_end_and_no_first_token() -> None:
    whole = replace(GOOD, streamed=False, token_times_s=[10.9])
    assert set(summarize([whole]).latencies) == {"e2e_ms"}


def test_one_token_has_no_time_per_token() -> None:
    one = replace(GOOD, token_times_s=[10.2], completion_tokens=1)
    assert set(summarize([one]).latencies) == {"ttft_ms", "e2e_ms"}


def test_a_late_client_is_told() -> None:
    records = [replace(GOOD, late_s=0.001)] * 50 + [replace(GOOD, late_s=0.4)] * 50
    assert summarize(records).late_p99_ms == pytest.approx(400)
