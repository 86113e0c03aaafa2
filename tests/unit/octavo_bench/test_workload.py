"""Arrivals and lengths: functions of a seed, and traces that say which line is wrong."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from octavo_bench.errors import BenchError
from octavo_bench.workload import (
    Job,
    Lengths,
    make_closed_jobs,
    make_poisson_jobs,
    parse_lengths,
    parse_trace,
    read_trace,
    reshape,
)

HEAD = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
PROMPT, OUTPUT = Lengths(low=10, high=30), Lengths(low=4, high=4)


@pytest.mark.parametrize(
    ("text", "low", "high"), [("100", 100, 100), ("64-256", 64, 256), ("1-1", 1, 1)]
)
def test_lengths_are_a_number_or_a_range(text: str, low: int, high: int) -> None:
    assert parse_lengths(text) == Lengths(low=low, high=high)


@pytest.mark.parametrize("text", ["", "0", "-3", "8-4", "0-4", "ten", "1-", "1-2-3"])
def test_what_is_no_length_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(BenchError, match="is no length"):
        parse_lengths(text)


def test_the_same_seed_gives_the_same_jobs_and_another_gives_others() -> None:
    jobs = make_closed_jobs(50, PROMPT, OUTPUT, seed=1)
    assert jobs == make_closed_jobs(50, PROMPT, OUTPUT, seed=1)
    assert jobs != make_closed_jobs(50, PROMPT, OUTPUT, seed=2)
    assert {job.prompt_tokens for job in jobs} <= set(range(10, 31))
    assert {(job.due_s, job.output_tokens) for job in jobs} == {(None, 4)}


def test_poisson_gaps_are_exponential_around_the_rate_and_lengths_are_those_of_a_closed_load() -> (
    None
):
    jobs = make_poisson_jobs(4000, PROMPT, OUTPUT, rate_per_s=8.0, seed=3)
    times = [job.due_s or 0.0 for job in jobs]
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert min(gaps) > 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8, rel=0.08), "regular gaps have none"
    closed = make_closed_jobs(4000, PROMPT, OUTPUT, seed=3)
    assert [job.prompt_tokens for job in jobs] == [job.prompt_tokens for job in closed]


def test_a_trace_starts_at_zero_in_order_of_time() -> None:
    rows = [
        HEAD,
        ["2023-11-16 18:15:50.9951690", "396", "109"],
        ["2023-11-16 18:15:46.6805900", "374", "44"],
        [],
    ]
    first, second = parse_trace(rows, "t.csv")
    assert first == Job(due_s=0.0, prompt_tokens=374, output_tokens=44)
    assert second.due_s == pytest.approx(4.314579)


def test_a_trace_may_have_its_columns_elsewhere_and_plain_seconds() -> None:
    rows = [["id", "GeneratedTokens", "TIMESTAMP", "ContextTokens"], ["x", "7", "12.5", "9"]]
    assert parse_trace(rows, "t") == [Job(due_s=0.0, prompt_tokens=9, output_tokens=7)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "lacks the column TIMESTAMP"),
        ([["TIMESTAMP", "GeneratedTokens"]], "lacks the column ContextTokens"),
        ([HEAD], "has no requests"),
        ([HEAD, ["1", "5", "5"], ["soon", "5", "5"]], "Line 3 of the trace t.csv"),
        ([HEAD, ["1", "5"]], "Line 2"),
        ([HEAD, ["1", "0", "5"]], "Line 2 .* length below 1"),
    ],
)
def test_a_broken_trace_is_told_by_column_or_line(rows: list[list[str]], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        parse_trace(rows, "t.csv")


def test_a_trace_is_read_from_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n1,2,3\r\n")
    assert read_trace(path) == [Job(due_s=0.0, prompt_tokens=2, output_tokens=3)]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_is_missing_or_no_text_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=r"t\.csv cannot be read: "):
        read_trace(path)


def test_reshaping_cuts_count_lengths_and_time() -> None:
    jobs = [Job(due_s=4.0 * n, prompt_tokens=100 * (n + 1), output_tokens=50) for n in range(3)]
    assert reshape(jobs, count=2, speed=4.0, most_prompt_tokens=150) == [
        Job(due_s=0.0, prompt_tokens=100, output_tokens=50),
        Job(due_s=1.0, prompt_tokens=150, output_tokens=50),
    ]
    assert [job.output_tokens for job in reshape(jobs, most_output_tokens=8)] == [8, 8, 8]
