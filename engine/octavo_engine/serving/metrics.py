"""The engine's metrics as a function of its state.

Counters and gauges are read at scrape from the last snapshot of the scheduler; histograms are
filled from finished requests and from steps. Every series is there from process start, at 0, also
while the model loads. A scrape reads what the core has told last, so it does not wait for a step.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo_engine.config import CacheShape
from octavo_engine.core.request import FinishReason, RequestRecord, SchedulerStats
from octavo_engine.serving.core_messages import StepSummary
from octavo_wire import metrics as names

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKENS: Final = tuple(float(2**power) for power in range(21))

_HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    names.TIME_TO_FIRST_TOKEN: ("Seconds from arrival to the first token", _LATENCY_S),
    names.INTER_TOKEN_LATENCY: ("Seconds between two tokens of a request", _LATENCY_S),
    names.TIME_PER_OUTPUT_TOKEN: ("Seconds per token after the first, by request", _LATENCY_S),
    names.E2E_LATENCY: ("Seconds from arrival to the end of a request", _LATENCY_S),
    names.QUEUE_TIME: ("Seconds from arrival to the first step", _LATENCY_S),
    names.PREFILL_TIME: ("Seconds from the first step to the first token", _LATENCY_S),
    names.DECODE_TIME: ("Seconds from the first to the last token", _LATENCY_S),
    names.REQUEST_PROMPT_TOKENS: ("Prompt tokens of a request", _TOKENS),
    names.REQUEST_GENERATION_TOKENS: ("Generated tokens of a request", _TOKENS),
    names.ITERATION_TOKENS: ("Tokens computed in one step", _TOKENS),
}
_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    names.PREFIX_CACHE_QUERIES: (
        "Prompt tokens looked up in the prefix cache",
        "prefix_query_tokens",
    ),
    names.PREFIX_CACHE_HITS: ("Prompt tokens found in the prefix cache", "prefix_hit_tokens"),
    names.NUM_PREEMPTIONS: ("Sequences preempted", "num_preemptions"),
    names.PROMPT_TOKENS: ("Prompt tokens, cached ones included", "prompt_tokens"),
    names.GENERATION_TOKENS: ("Generated tokens", "generated_tokens"),
}


class _Histogram:
    """Counts by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def counts(self) -> list[int]:
        """By bucket, those above all bounds last."""
        return list(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*(repr(bound) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts())), strict=True))

    @property
    def sum(self) -> float:
        return self._sum


class EngineMetrics(Collector):
    """Watches the engine and renders what it saw."""

    def __init__(self, *, model_name: str, block_size: int) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._stats = SchedulerStats()
        self._cache: CacheShape | None = None
        self._block_size = block_size
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._last_token_s: dict[str, float] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._template = self._make_template()

    def on_loaded(self, cache: CacheShape, stats: SchedulerStats) -> None:
        self._cache, self._stats = cache, stats
        self._template = self._make_template()

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        self._stats = stats
        if step.request_ids:
            self._observe(names.ITERATION_TOKENS, sum(step.num_scheduled_tokens))
        between = self._histograms[names.INTER_TOKEN_LATENCY]
        for update in step.updates:
            if not update.new_token_ids:
                continue
            last_s = self._last_token_s.get(update.request_id)
            if last_s is not None:
                share_s = (step.ended_s - last_s) / len(update.new_token_ids)
                for _ in update.new_token_ids:
                    between.observe(share_s)
            if update.record is None:
                self._last_token_s[update.request_id] = step.ended_s

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None:
        self._stats = stats
        self._last_token_s.pop(record.request_id, None)
        self._observe(names.REQUEST_PROMPT_TOKENS, record.num_prompt_tokens)
        self._observe(names.REQUEST_GENERATION_TOKENS, record.num_generated_tokens)
        self._observe(names.E2E_LATENCY, record.finished_s - record.arrival_s)
        scheduled_s, first_s, last_s = (
            record.first_scheduled_s, record.first_token_s, record.last_token_s
        )  # fmt: skip
        if scheduled_s is not None:
            self._observe(names.QUEUE_TIME, scheduled_s - record.arrival_s)
        if first_s is None or last_s is None or scheduled_s is None:
            return
        self._observe(names.TIME_TO_FIRST_TOKEN, first_s - record.arrival_s)
        self._observe(names.PREFILL_TIME, first_s - scheduled_s)
        self._observe(names.DECODE_TIME, last_s - first_s)
        if record.num_generated_tokens > 1:
            per_token_s = (last_s - first_s) / (record.num_generated_tokens - 1)
            self._observe(names.TIME_PER_OUTPUT_TOKEN, per_token_s)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def render(self) -> bytes:
        """The page of /metrics, in Prometheus' text format.

        Scrapers come many times a second, and the event loop has tokens to stream: all that never
        changes is written once, and a scrape puts the numbers in.
        """
        pieces: list[str] = []
        for text, value in zip(self._template, self._values(), strict=True):
            pieces += (text, floatToGoString(value))  # type: ignore[no-untyped-call]
        return ("".join(pieces) + "\n").encode()

    def _make_template(self) -> list[str]:
        """The page's text before each of its numbers."""
        texts = [""]
        for line in generate_latest(self._registry).decode().splitlines(keepends=True):
            if line.startswith("#"):
                texts[-1] += line
            else:
                texts[-1] += line.rpartition(" ")[0] + " "
                texts.append("\n")
        return texts[:-1]

    def _values(self) -> Iterator[float]:
        """The numbers of the page, in the order of `collect`."""
        stats = self._stats
        yield stats.num_running
        yield stats.num_waiting
        yield self._usage(stats)
        yield 1 if self._cache else 0
        for _, field in _COUNTERS.values():
            yield getattr(stats, field)
        for reason in FinishReason:
            yield stats.finished.get(reason, 0)
        for name in _HISTOGRAMS:
            histogram = self._histograms[name]
            counts = list(accumulate(histogram.counts()))
            yield from counts
            yield counts[-1]
            yield histogram.sum

    def _usage(self, stats: SchedulerStats) -> float:
        return stats.num_used_blocks / stats.num_usable_blocks if stats.num_usable_blocks else 0.0

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield self._gauge(names.NUM_REQUESTS_RUNNING, "Requests in the batch", stats.num_running)
        yield self._gauge(names.NUM_REQUESTS_WAITING, "Requests queued", stats.num_waiting)
        usage = self._usage(stats)
        yield self._gauge(names.KV_CACHE_USAGE, "Share of the KV blocks in use, 0 to 1", usage)
        yield self._cache_info()
        for name, (text, field) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), getattr(stats, field))
            yield counter
        yield self._finished(stats)
        for name, (text, _) in _HISTOGRAMS.items():
            rows = self._histograms[name]
            histogram = HistogramMetricFamily(name, text, labels=list(self._labels))
            histogram.add_metric(list(self._labels.values()), rows.buckets(), rows.sum)
            yield histogram

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=list(self._labels))
        gauge.add_metric(list(self._labels.values()), value)
        return gauge

    def _cache_info(self) -> Metric:
        """1 with the cache's shape as labels; 0, and no blocks, until the model is loaded."""
        cache = self._cache
        labels = {
            **self._labels,
            "block_size": str(cache.block_size if cache else self._block_size),
            "num_gpu_blocks": str(cache.num_blocks if cache else 0),
        }
        gauge = GaugeMetricFamily(
            names.CACHE_CONFIG_INFO, "Shape of the KV cache", labels=list(labels)
        )
        gauge.add_metric(list(labels.values()), 1 if cache else 0)
        return gauge

    def _finished(self, stats: SchedulerStats) -> Metric:
        labels = [*self._labels, "finished_reason"]
        counter = CounterMetricFamily(names.REQUEST_SUCCESS, "Requests that ended", labels=labels)
        for reason in FinishReason:
            counter.add_metric(
                [*self._labels.values(), reason.value], stats.finished.get(reason, 0)
            )
        return counter
