"""Command lines: what is missing or at odds is told, and keys are in none of them."""

from pathlib import Path

import pytest

from octavo_bench.__main__ import main
from octavo_bench.errors import BenchError
from octavo_bench.options import ENV_API_KEY, make_jobs, parse_options, read_api_key
from octavo_bench.workload import Lengths

SERVE = ["serve", "--url", "http://h:1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required"),
        (["serve"], "--url"),
        (SERVE, "Give one of --concurrency, --rate and --trace"),
        ([*SERVE, "--rate", "1", "--concurrency", "2"], "--concurrency and --rate given"),
        ([*SERVE, "--concurrency", "0"], "'0' is no whole number of 1 or more"),
        ([*SERVE, "--rate", "nan"], "'nan' is no number"),
        ([*SERVE, "--rate", "inf"], "'inf' is no number"),
        ([*SERVE, "--rate", "1", "--prompt-tokens", "9-3"], "'9-3' is no length"),
        ([*SERVE, "--rate", "1", "--trace-speed", "2"], "give --trace, too"),
        ([*SERVE, "--rate", "1", "--most-output-tokens", "2"], "give --trace, too"),
        ([*SERVE, "--rate", "1", "--shared-prefix-tokens", "100"], "leaves nothing of a prompt"),
        ([*SERVE, "--rate", "1", "--api-key", "secret"], "unrecognized arguments"),
        (["compare", "http://a", "--rate", "1"], "B"),
        (["offline", "m.gguf", "--output-tokens", "4-8"], "one length"),
        (["offline", "m.gguf", "--set", "max_num_seqs"], "write NAME=VALUE"),
        (["offline", "m.gguf", "--rate", "3"], "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_its_reason(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


def test_defaults() -> None:
    options = parse_options([*SERVE, "--concurrency", "4"])
    assert options.prompt_tokens == Lengths(low=100, high=100)
    assert (options.stream, options.ignore_eos, options.endpoint) == (True, True, "completions")
    jobs = make_jobs(options, seed=0)
    assert len(jobs) == 100
    assert all(job.due_s is None for job in jobs)


def test_a_rate_makes_arrivals_and_a_trace_brings_its_own(tmp_path: Path) -> None:
    rated = make_jobs(parse_options([*SERVE, "--rate", "2", "--requests", "5"]), seed=0)
    assert len(rated) == 5
    assert all(job.due_s is not None for job in rated)
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,9,9\n10,9,9\n20,9,9\n")
    options = [*SERVE, "--trace", str(trace), "--trace-speed", "10", "--most-output-tokens", "4"]
    jobs = make_jobs(parse_options(options), seed=0)
    assert [(job.due_s, job.output_tokens) for job in jobs] == [(0.0, 4), (1.0, 4), (2.0, 4)]
    assert len(make_jobs(parse_options([*options, "--requests", "2"]), seed=0)) == 2


def test_a_trace_that_is_missing_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    options = parse_options([*SERVE, "--trace", str(tmp_path / "none.csv")])
    with pytest.raises(BenchError, match=r"none\.csv cannot be read"):
        make_jobs(options, seed=0)


def test_the_api_key_comes_from_a_file_else_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    assert read_api_key(path, {ENV_API_KEY: "from-env"}) == "from-file"
    assert read_api_key(None, {ENV_API_KEY: "from-env"}) == "from-env"
    assert read_api_key(None, {}) is None
    path.write_text("\n")
    with pytest.raises(BenchError, match="holds no API key"):
        read_api_key(path, {})
    with pytest.raises(BenchError, match="cannot be read"):
        read_api_key(tmp_path / "none", {})
