"""`octavo bench` as a user calls it, against the real server with scripted answers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from octavo_cli.main import main
from support.serving import pace, serve_fake
from support.tiny_gguf import write_tiny

CLOSED = ["--concurrency", "4", "--requests", "12", "--output-tokens", "8"]


def report_of(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> dict[str, Any]:
    assert main(["bench", *argv, "-o", "json"]) == status
    shown = capsys.readouterr()
    assert shown.err == "", "no progress where there is no terminal"
    report: dict[str, Any] = json.loads(shown.out)
    return report


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_serve_tells_what_the_server_did(
    endpoint: str, stream: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    options = (*CLOSED, "--endpoint", endpoint, stream, "--out", str(out))
    with serve_fake() as server:
        before = server.metric("vllm:generation_tokens_total")
        report = report_of(capsys, "serve", "--url", server.url, *options)
        asked = server.metric("vllm:generation_tokens_total") - before
        finished = server.metric("vllm:request_success_total", finished_reason="length")
    summary = report["summary"]
    assert (summary["requests"], summary["succeeded"], summary["failures"]) == (12, 12, {})
    assert summary["output_tokens"] == 12 * 8
    assert summary["finish_reasons"] == {"length": 12}
    assert asked == 12 * 8 + 2 * 8 + 2, "the run, two to warm up, one probe of two tokens"
    assert finished == 12 + 2 + 1
    latencies = {"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"}
    assert set(summary["latencies"]) == (latencies if stream == "--stream" else {"e2e_ms"})
    assert summary["output_tokens_per_s"] > 0
    assert 80 <= summary["prompt_tokens"] / 12 <= 120, "100 tokens are the default"
    assert report["server"]["prompt_lengths_by"] == "tokenize"
    assert report["machine"]["cpus"] == len(os.sched_getaffinity(0))
    assert report["command"].startswith("octavo bench serve --url http://127.0.0.1:")
    assert json.loads(out.read_text()) == report


def test_an_open_load_with_a_shared_prefix_hits_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve_fake() as server:
        options = ("--rate", "200", "--requests", "20", "--output-tokens", "2-6")
        prefix = ("--prompt-tokens", "200", "--shared-prefix-tokens", "150")
        report = report_of(capsys, "serve", "--url", server.url, *options, *prefix)
        hits = server.metric("vllm:prefix_cache_hits_total")
    summary = report["summary"]
    assert summary["succeeded"] == 20
    assert 20 * 100 < summary["cached_tokens"] <= hits
    assert 20 * 2 <= summary["output_tokens"] <= 20 * 6


def test_what_the_server_refuses_is_counted_and_nothing_else_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "0,40,8", "0.01,5000,8", "0.02,40,8"]
    trace.write_text("\n".join(rows))
    with serve_fake() as server:
        report = report_of(capsys, "serve", "--url", server.url, "--trace", str(trace))
        options = ("--concurrency", "1", "--requests", "2", "--prompt-tokens", "5000")
        failed = report_of(capsys, "serve", "--url", server.url, *options, status=1)
    assert report["summary"]["failures"] == {"http_400": 1}
    assert report["summary"]["succeeded"] == 2
    assert "1024" in report["errors"]["http_400"], "the server's words, with its limit"
    assert (failed["summary"]["succeeded"], failed["summary"]["latencies"]) == (0, {})


def test_keys_are_read_from_a_file_and_shown_nowhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("a-very-secret-key\n")
    with serve_fake(api_key_file=key) as server:
        assert main(["bench", "serve", "--url", server.url, *CLOSED]) == 2
        assert "answered GET /v1/models with 401" in capsys.readouterr().err
        options = (*CLOSED, "--api-key-file", str(key))
        report = report_of(capsys, "serve", "--url", server.url, *options)
    assert report["summary"]["succeeded"] == 12
    assert "secret" not in json.dumps(report)


def test_compare_takes_turns_with_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    paced = pace(0.002)  # else a busy client may read a whole answer at once
    with serve_fake(before_result=paced) as one, serve_fake(before_result=paced) as other:
        argv = ("compare", one.url, other.url, *CLOSED, "--rounds", "3", "--warmup", "0")
        report = report_of(capsys, *argv)
        for server in (one, other):
            assert server.metric("vllm:generation_tokens_total") == 3 * 12 * 8 + 2
        assert main(["bench", *argv]) == 0
        table = capsys.readouterr().out
    rounds = report["rounds"]
    assert [run["prompt_tokens"] for run in rounds["A"]] == [
        run["prompt_tokens"] for run in rounds["B"]
    ]
    assert len({run["prompt_tokens"] for run in rounds["A"]}) > 1, "new words each round"
    figures = {row["figure"]: row for row in report["comparison"]}
    assert {"output_tokens_per_s", "ttft_ms.p50", "tpot_ms.p99"} <= set(figures)
    row = figures["output_tokens_per_s"]
    ratios = [
        b["output_tokens_per_s"] / a["output_tokens_per_s"]
        for a, b in zip(rounds["A"], rounds["B"], strict=True)
    ]
    assert row["ratio"]["low"] == min(ratios)
    assert row["verdict"] == "too few rounds"
    assert "output tokens/s" in table
    assert "too few rounds" in table


def test_offline_counts_the_tokens_of_a_batch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", readable=True, context_length=4096).path
    options = ("--requests", "6", "--prompt-tokens", "30", "--output-tokens", "7")
    settings = ("--set", "kv-cache-memory=4Mi", "--set", "max_num_seqs=4")
    report = report_of(capsys, "offline", str(model), *options, *settings)
    summary = report["summary"]
    assert (summary["requests"], summary["succeeded"]) == (6, 6)
    assert summary["output_tokens"] == 6 * 7
    assert summary["output_tokens_per_s"] == pytest.approx(6 * 7 / summary["duration_s"])
    assert report["engine"]["settings"]["max_num_seqs"] == "4"


@pytest.mark.parametrize(
    ("settings", "words"),
    [(["--set", "max_num_seq=4"], "max_num_seq"), (["--set", "port=1"], "belongs to octavo serve")],
)
def test_offline_refuses_settings_that_it_does_not_know_or_have(
    capsys: pytest.CaptureFixture[str], settings: list[str], words: str
) -> None:
    assert main(["bench", "offline", "none.gguf", *settings]) == 2
    assert words in capsys.readouterr().err


def test_offline_tells_of_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "offline", "/nowhere/none.gguf"]) == 2
    assert "none.gguf" in capsys.readouterr().err
