"""Reports: JSON with everything needed to run it again, and a table for people."""

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from octavo_bench.comparison import Row
from octavo_bench.figures import Summary

_LABELS: Final = {"ttft_ms": "TTFT", "itl_ms": "ITL", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
_LATE_MS: Final = 50.0
_PACKAGES: Final = ("octavo", "aiohttp", "torch")


def describe_run(argv: Sequence[str]) -> dict[str, Any]:
    """Where, when and how: what makes a figure comparable with another."""
    return {
        "command": shlex.join(["octavo", "bench", *argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_name(),
            "cpus": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def summary_table(summary: Summary) -> str:
    """Rates, failures, and a row for each latency."""
    lines = [
        f"{summary.succeeded} of {summary.requests} requests in {summary.duration_s:.2f} s: "
        f"{summary.output_tokens_per_s:.1f} output tokens/s, "
        f"{summary.total_tokens_per_s:.1f} with prompts, {summary.requests_per_s:.2f} requests/s",
        f"prompt tokens {summary.prompt_tokens}"
        + ("" if summary.cached_tokens is None else f" ({summary.cached_tokens} cached)")
        + f", output tokens {summary.output_tokens}",
    ]
    if summary.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(summary.failures.items()))
        lines.append(f"failed: {kinds}")
    if summary.tokens_are_counted_by_chunk:
        lines.append("the server told no usage: output tokens are counted as chunks")
    if summary.late_p99_ms > _LATE_MS:
        lines.append(
            f"the client was late by {summary.late_p99_ms:.0f} ms (p99): it, not the server, may "
            "be the limit"
        )
    if summary.latencies:
        rows = [["ms", "mean", "p50", "p90", "p99", "max"]]
        for name, measured in summary.latencies.items():
            points = (measured.mean, measured.p50, measured.p90, measured.p99, measured.max)
            rows.append([_LABELS[name], *(f"{value:.1f}" for value in points)])
        lines += ["", _aligned(rows)]
    return "\n".join(lines)


def comparison_table(rows: Sequence[Row]) -> str:
    """Medians of the rounds with their range, and the ratio with its verdict."""
    cells = [["", "A", "B", "B / A", "B wins", "p", ""]]
    for row in rows:
        name, _, point = row.figure.partition(".")
        label = f"{_LABELS[name]} {point} (ms)" if point else "output tokens/s"
        cells.append(
            [
                label,
                *(f"{s.median:.1f} ({s.low:.1f}–{s.high:.1f})" for s in (row.a, row.b)),
                f"{row.ratio.median:.2f} ({row.ratio.low:.2f}–{row.ratio.high:.2f})",
                f"{row.b_wins}/{row.rounds}",
                f"{row.p:.2f}",
                row.verdict.value,
            ]
        )
    return _aligned(cells)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
