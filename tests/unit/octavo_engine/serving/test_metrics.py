import statistics
import time
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.config import CacheShape
from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.serving.core_messages import StepSummary
from octavo_engine.serving.metrics import EngineMetrics
from octavo_wire import metrics as names


def make_metrics() -> EngineMetrics:
    return EngineMetrics(model_name="m", block_size=16)


def samples(metrics: EngineMetrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(metrics: EngineMetrics, name: str, **labels: str) -> float:
    rows = samples(metrics)[name]
    return sum(number for found, number in rows if labels.items() <= found.items())


def make_record(**fields: Any) -> RequestRecord:
    chosen: dict[str, Any] = {
        "request_id": "a", "finish_reason": FinishReason.STOP, "error": None,
        "num_prompt_tokens": 10, "num_generated_tokens": 5, "num_cached_tokens": 0,
        "num_preemptions": 0, "arrival_s": 1.0, "first_scheduled_s": 1.5, "first_token_s": 2.0,
        "last_token_s": 4.0, "finished_s": 4.0, **fields,
    }  # fmt: skip
    return RequestRecord(**chosen)


def test_every_name_is_there_from_process_start_at_zero() -> None:
    found = samples(make_metrics())
    for name in (*names.GAUGES, *names.COUNTERS, *(f"{h}_count" for h in names.HISTOGRAMS)):
        assert name in found, name
        assert all(number == 0 for _, number in found[name]), name
        assert all(
            {"model_name": "m", "engine": "0"}.items() <= labels.items()
            for labels, _ in found[name]
        )
    reasons = {labels["finished_reason"] for labels, _ in found[names.REQUEST_SUCCESS]}
    assert reasons == {"stop", "length", "abort", "error"}


def test_the_shape_of_the_cache_is_told_once_it_is_known() -> None:
    metrics = make_metrics()
    cache = CacheShape(num_blocks=100, block_size=16, bytes_per_block=1)
    metrics.on_loaded(cache, SchedulerStats(num_usable_blocks=99))
    ((labels, number),) = samples(metrics)[names.CACHE_CONFIG_INFO]
    assert (labels["block_size"], labels["num_gpu_blocks"], number) == ("16", "100", 1.0)


def test_gauges_and_counters_are_the_last_snapshot() -> None:
    metrics = make_metrics()
    stats = SchedulerStats(
        num_running=2, num_waiting=3, num_usable_blocks=8, num_used_blocks=2,
        prefix_query_tokens=100, prefix_hit_tokens=40, num_preemptions=1, prompt_tokens=70,
        generated_tokens=9, finished={FinishReason.ABORT: 4},
    )  # fmt: skip
    metrics.on_finish(make_record(), stats)
    assert value(metrics, names.NUM_REQUESTS_RUNNING) == 2
    assert value(metrics, names.NUM_REQUESTS_WAITING) == 3
    assert value(metrics, names.KV_CACHE_USAGE) == 0.25
    assert value(metrics, names.PREFIX_CACHE_QUERIES) == 100
    assert value(metrics, names.PREFIX_CACHE_HITS) == 40
    assert value(metrics, names.NUM_PREEMPTIONS) == 1
    assert value(metrics, names.PROMPT_TOKENS) == 70
    assert value(metrics, names.GENERATION_TOKENS) == 9
    assert value(metrics, names.REQUEST_SUCCESS, finished_reason="abort") == 4


def test_the_page_is_what_the_client_library_would_write() -> None:
    metrics = EngineMetrics(model_name='a "b\\ \n', block_size=16)
    metrics.on_loaded(CacheShape(num_blocks=9, block_size=4, bytes_per_block=1), SchedulerStats())
    finished = {FinishReason.STOP: 3, FinishReason.ERROR: 10**7}
    stats = SchedulerStats(
        num_running=1, num_usable_blocks=3, num_used_blocks=1, prompt_tokens=2**53,
        finished=finished,
    )  # fmt: skip
    for seconds in (0.0, 1e-9, 0.3, 1e4):
        metrics.on_finish(make_record(finished_s=1.0 + seconds), stats)
    assert metrics.render() == generate_latest(metrics._registry)


def test_a_scrape_takes_little_of_the_event_loop() -> None:
    metrics = make_metrics()
    spent_s = []
    for _ in range(50):
        started_s = time.thread_time()
        metrics.render()
        spent_s.append(time.thread_time() - started_s)
    assert statistics.median(spent_s) < 0.002, "of the 5 ms that a scrape may take"


def test_the_times_of_a_request() -> None:
    metrics = make_metrics()
    metrics.on_finish(make_record(), SchedulerStats())
    expected = {
        names.QUEUE_TIME: 0.5,
        names.PREFILL_TIME: 0.5,
        names.TIME_TO_FIRST_TOKEN: 1.0,
        names.DECODE_TIME: 2.0,
        names.TIME_PER_OUTPUT_TOKEN: 0.5,
        names.E2E_LATENCY: 3.0,
        names.REQUEST_PROMPT_TOKENS: 10,
        names.REQUEST_GENERATION_TOKENS: 5,
    }
    for name, seconds in expected.items():
        assert value(metrics, f"{name}_sum") == seconds, name
        assert value(metrics, f"{name}_count") == 1, name


def test_j1_an_aborted_request_that_never_ran_is_counted_where_it_has_a_value() -> None:
    metrics = make_metrics()
    metrics.on_finish(
        make_record(
            finish_reason=FinishReason.ABORT, num_generated_tokens=0, first_scheduled_s=None,
            first_token_s=None, last_token_s=None,
        ),
        SchedulerStats(),
    )  # fmt: skip
    assert value(metrics, f"{names.REQUEST_PROMPT_TOKENS}_sum") == 10
    assert value(metrics, f"{names.E2E_LATENCY}_count") == 1
    assert value(metrics, f"{names.TIME_TO_FIRST_TOKEN}_count") == 0


def test_the_time_between_tokens() -> None:
    metrics = make_metrics()
    for step, ended_s in enumerate((1.0, 1.5, 3.0)):
        update = SequenceUpdate(request_id="a", new_token_ids=[7], num_cached_tokens=0)
        summary = StepSummary(
            step=step, request_ids=["a"], num_scheduled_tokens=[step + 1], started_s=0,
            ended_s=ended_s, updates=[update],
        )  # fmt: skip
        metrics.on_step(summary, SchedulerStats())
    assert value(metrics, f"{names.INTER_TOKEN_LATENCY}_count") == 2
    assert value(metrics, f"{names.INTER_TOKEN_LATENCY}_sum") == 2.0
    assert value(metrics, f"{names.ITERATION_TOKENS}_sum") == 6
    within = value(metrics, f"{names.INTER_TOKEN_LATENCY}_bucket", le="0.5")
    assert within == 1, "a value on a bound belongs to its bucket"
