"""Figures from records: percentiles of the latencies, rates, failures by kind.

    sent        first text                     last text   end
     │             │      │      │      │         │         │
     ├─── TTFT ────┤─ITL──┤─ITL──┤─ITL──┤─ … ─────┤         │
     ├────────────────────────── E2E ─────────────────────── ┤
    TPOT = (last text − first text) / (output tokens − 1)

An ITL is the gap between two chunks with text: with a server that sends several tokens in one
chunk it is longer than the time per token, which TPOT tells.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from octavo_bench.records import Record

LATENCIES: Final = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Tokens and latencies are those of requests that went well."""

    requests: int
    succeeded: int
    failures: dict[str, int]  # by kind
    duration_s: float  # from the first request sent to the last answer ended
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None  # None where the server does not tell
    tokens_are_counted_by_chunk: bool  # the server told no usage
    finish_reasons: dict[str, int]
    late_p99_ms: float  # how late the client itself was; it should be next to nothing
    latencies: dict[str, Distribution]  # by the names in LATENCIES; only those that were measured

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest ranks, as numpy's default: [1, 2, 3, 4] at 0.5 gives 2.5."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def distribution(values: Sequence[float]) -> Distribution:
    ordered = sorted(values)
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def summarize(records: Sequence[Record]) -> Summary:
    """The figures of a run of one request or more."""
    assert records, "a run has requests"
    good = [record for record in records if record.failure is None]
    duration_s = max(r.ended_s for r in records) - min(r.sent_s for r in records)
    output_tokens = sum(record.output_tokens for record in good)
    prompt_tokens = sum(record.prompt_tokens or 0 for record in good)
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    samples = {name: _samples(name, good) for name in LATENCIES}
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failures=dict(Counter(str(r.failure) for r in records if r.failure is not None)),
        duration_s=duration_s,
        requests_per_s=len(good) * per_s,
        output_tokens_per_s=output_tokens * per_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) * per_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(cached) if cached else None,
        tokens_are_counted_by_chunk=any(record.completion_tokens is None for record in good),
        finish_reasons=dict(Counter(str(record.finish_reason) for record in good)),
        late_p99_ms=percentile(sorted(record.late_s for record in records), 0.99) * 1e3,
        latencies={name: distribution(values) for name, values in samples.items() if values},
    )


def _samples(name: str, good: Sequence[Record]) -> list[float]:
    """Milliseconds; one a request, but one a gap for `itl_ms`."""
    if name == "e2e_ms":
        return [(record.ended_s - record.sent_s) * 1e3 for record in good]
    streamed = [record for record in good if record.streamed and record.token_times_s]
    if name == "ttft_ms":
        return [(record.token_times_s[0] - record.sent_s) * 1e3 for record in streamed]
    if name == "itl_ms":
        return [(b - a) * 1e3 for record in streamed for a, b in pairwise(record.token_times_s)]
    return [
        (record.token_times_s[-1] - record.token_times_s[0]) / (record.output_tokens - 1) * 1e3
        for record in streamed
        if record.output_tokens > 1
    ]
