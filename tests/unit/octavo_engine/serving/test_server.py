"""The life of a server: what holds while it drains, while its core dies, while it is scraped."""

import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo_engine.serving.core_process import CoreProcess, launch_process
from octavo_engine.serving.internal_state import internal_state
from octavo_wire import metrics as names
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings
from support.fake_core import fake_core
from support.serving import MODEL, RunningServer, make_fake_engine, pace, serve_fake


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [120], "max_tokens": 5, "ignore_eos": True, **fields}


def wait_for(condition: Callable[[], bool], within_s: float = 10) -> None:
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.01)


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream; the last one without [DONE] is an error."""
    wanted = body(stream=True, **fields)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=wanted, timeout=20) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def status(server: RunningServer, path: str) -> int:
    return server.client.get(path).status_code


def serve_process(scenario: str) -> RunningServer:
    launch = launch_process(EngineSettings(model="tiny.gguf"), fake_core(scenario))
    return serve_fake(launch=launch)


class TestI4Drain:
    def test_four_streams_and_requests_that_come_late(self) -> None:
        with (
            serve_fake(before_result=pace(0.005), drain_accept_s=0.5) as server,
            ThreadPoolExecutor(4) as pool,
        ):
            streams = [pool.submit(lambda: stream(server, max_tokens=300)) for _ in range(4)]
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 4)
            server.shut_down()
            wait_for(lambda: status(server, "/health/ready") == 503)
            assert status(server, "/health/live") == 200
            assert server.client.get("/internal/state").json()["phase"] == "leaving"
            late = server.client.post("/v1/completions", json=body())
            assert late.status_code == 200, "whoever routes here may not know yet"

            wait_for(lambda: server.client.get("/health/ready").json()["status"] == "draining")
            refused = server.client.post("/v1/completions", json=body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["Retry-After"]) > 0
            assert status(server, "/health/live") == 200
            for answer in streams:
                assert answer.result()[-1]["choices"][0]["finish_reason"] == "length"
            assert server.join() == 0

    def test_a_second_signal_ends_it_at_once(self) -> None:
        with serve_fake(before_result=pace(0.02), drain_accept_s=5.0) as server:
            server.shut_down()
            wait_for(lambda: status(server, "/health/ready") == 503)
            started_s = time.monotonic()
            server.shut_down()
            assert server.join() == 128 + signal.SIGTERM
            assert time.monotonic() - started_s < 3

    def test_a_core_in_a_process_is_drained_and_ends_too(self) -> None:
        with serve_process("slow") as server, ThreadPoolExecutor(1) as pool:
            link = link_of(server)
            answer = pool.submit(lambda: stream(server, max_tokens=20))
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 1)
            server.shut_down()
            assert answer.result()[-1]["choices"][0]["finish_reason"] == "length"
            assert server.join() == 0
            assert not link.is_alive


def link_of(server: RunningServer) -> CoreProcess:
    assert server.server.state.served is not None
    link = server.server.state.served.engine._link
    assert isinstance(link, CoreProcess)
    return link


def test_i4_a_core_that_is_killed_ends_streams_with_an_error_and_the_server() -> None:
    with serve_process("slow") as server, ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(lambda: stream(server, max_tokens=900)) for _ in range(2)]
        plain = pool.submit(
            lambda: httpx.post(f"{server.url}/v1/completions", json=body(max_tokens=900))
        )
        wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 3)
        os.kill(link_of(server).pid, signal.SIGKILL)
        for answer in streams:
            events = answer.result()
            assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
            assert events[-1]["error"]["type"] == "server_error"
        assert plain.result().status_code == 500
        assert plain.result().json()["error"]["code"] == "engine_error"
        assert status(server, "/health/live") == 503
        assert server.join() == 1
        assert server.server.failure is not None
        assert server.server.failure.reason is Reason.INTERNAL_ERROR
        assert "killed" in server.server.failure.message


@pytest.mark.parametrize(("scenario", "exit_status"), [("refuses", 78), ("crashes", 1)])
def test_a_core_that_cannot_load_ends_the_server(scenario: str, exit_status: int) -> None:
    launch = launch_process(EngineSettings(model="tiny.gguf"), fake_core(scenario))
    with serve_fake(launch=launch, wait_for="listening") as server:
        assert server.join() == exit_status
        assert server.server.failure is not None


def test_the_end_comes_while_the_core_still_loads() -> None:
    launch = launch_process(EngineSettings(model="tiny.gguf"), fake_core("hangs"))
    with serve_fake(launch=launch, wait_for="listening") as server:
        wait_for(lambda: "loading" in server.client.get("/health/ready").json())
        server.shut_down()
        assert server.join() == 0


def median_cost_s(work: Callable[[], object]) -> float:
    spent_s = []
    for _ in range(100):
        started_s = time.thread_time()
        work()
        spent_s.append(time.thread_time() - started_s)
    return statistics.median(spent_s)


class TestInternalState:
    def test_tells_how_full_the_engine_is(self) -> None:
        with serve_fake(before_result=pace(0.005), max_num_seqs=2) as server:
            with ThreadPoolExecutor(3) as pool:
                for _ in range(3):
                    pool.submit(lambda: stream(server, prompt=[97] * 40, max_tokens=100))
                pages = [server.client.get("/internal/state").json()]
                while pages[-1]["running"] < 2 or not pages[-1]["waiting"]:
                    assert len(pages) < 1000
                    pages.append(server.client.get("/internal/state").json())
                page = pages[-1]
            assert (page["model"], page["phase"], page["alive"]) == (MODEL, "ready", True)
            assert (page["running"], page["waiting"], page["open_requests"]) == (2, 1, 3)
            assert page["waiting_tokens"] == 40
            assert page["free_blocks"] < page["usable_blocks"] == 256
            assert 0 < page["kv_cache_usage"] < 1
            assert page["prefill_tokens_per_s"] > 0
            assert median_cost_s(lambda: internal_state(server.server.state)) < 0.0005
            wait_for(lambda: server.client.get("/internal/state").json()["free_blocks"] == 256)
            page = server.client.get("/internal/state").json()
            assert (page["running"], page["waiting"], page["kv_cache_usage"]) == (0, 0, 0)

    def test_is_there_while_the_model_loads(self) -> None:
        may_end = threading.Event()
        with RunningServer(
            load=lambda _: may_end.wait() and make_fake_engine(), wait_for="listening"
        ) as server:
            page = server.client.get("/internal/state").json()
            assert (page["model"], page["phase"]) == (MODEL, "loading")
            may_end.set()
            server.wait_until_ready()


class TestMetricsUnderLoad:
    def test_a_page_does_not_wait_for_a_step(self) -> None:
        """256 requests run in steps of 0.1 s; the page is made meanwhile."""
        with (
            serve_fake(before_result=pace(0.1), max_num_seqs=256, num_blocks=4097) as server,
            ThreadPoolExecutor(8) as pool,
            httpx.Client(base_url=server.url) as scraper,
        ):
            many = body(prompt=[[97]] * 32, max_tokens=30)
            url = f"{server.url}/v1/completions"
            answers = [pool.submit(httpx.post, url, json=many, timeout=30) for _ in range(8)]
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 256)
            spent_s = []
            for _ in range(15):
                started_s = time.monotonic()
                assert scraper.get("/metrics").status_code == 200
                spent_s.append(time.monotonic() - started_s)
            assert server.metric(names.NUM_REQUESTS_RUNNING) == 256
            assert statistics.median(spent_s) < 0.05, "half a step"
            assert [answer.result().status_code for answer in answers] == [200] * 8

    def test_what_is_rejected_is_no_request_that_ended(self) -> None:
        with serve_fake(before_result=pace(0.005), max_num_seqs=1, max_queued_requests=0) as server:
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(lambda: stream(server, max_tokens=100))
                wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 1)
                full = server.client.post("/v1/completions", json=body())
                assert (full.status_code, int(full.headers["Retry-After"]) > 0) == (429, True)
                long = server.client.post("/v1/completions", json=body(prompt=[97] * 5000))
                assert long.status_code == 400
                assert answer.result()[-1]["choices"][0]["finish_reason"] == "length"
            assert server.metric(names.REQUEST_SUCCESS) == 1
            assert server.metric(f"{names.E2E_LATENCY}_count") == 1
            assert server.metric(names.PROMPT_TOKENS) == 1
            assert server.metric(names.NUM_REQUESTS_WAITING) == 0

    def test_j2_gauges_fall_when_everything_is_aborted(self) -> None:
        with serve_fake(before_result=pace(0.005)) as server:
            client = httpx.Client(base_url=server.url)
            answers = [
                client.send(
                    client.build_request(
                        "POST", "/v1/completions", json=body(stream=True, max_tokens=900)
                    ),
                    stream=True,
                )
                for _ in range(4)
            ]
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 4)
            for answer in answers:
                answer.close()
            client.close()
            wait_for(lambda: server.metric(names.NUM_REQUESTS_RUNNING) == 0, 2)
            assert server.metric(names.KV_CACHE_USAGE) == 0
            assert server.metric(names.REQUEST_SUCCESS, finished_reason="abort") == 4
            assert server.metric(names.REQUEST_SUCCESS) == 4
