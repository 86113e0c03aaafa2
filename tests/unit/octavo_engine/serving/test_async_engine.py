import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestRecord, RequestSpec, SchedulerStats
from octavo_engine.errors import ContextTooLong, Overloaded
from octavo_engine.serving.async_engine import AsyncEngine, EngineDied, Observer, OpenRequest
from octavo_engine.serving.core_messages import StepSummary
from octavo_engine.serving.core_thread import CoreThread
from octavo_engine.serving.engine import EngineCore
from support.serving import FakeEngine, make_fake_engine, pace


class Watcher:
    def __init__(self) -> None:
        self.stats = SchedulerStats()
        self.records: list[RequestRecord] = []
        self.num_steps = 0

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        self.stats = stats
        self.num_steps += bool(step.request_ids)

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None:
        self.stats = stats
        self.records.append(record)


class Clumsy(Watcher):
    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        raise ValueError("negative increment")


def make_spec(name: str, *, num_prompt_tokens: int = 3, max_tokens: int = 5) -> RequestSpec:
    return RequestSpec(
        request_id=name,
        prompt_token_ids=list(range(1, num_prompt_tokens + 1)),
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_s=time.monotonic(),
    )


@asynccontextmanager
async def running(
    engine: FakeEngine, *observers: Observer, deaths: list[BaseException] | None = None
) -> AsyncIterator[AsyncEngine]:
    core = EngineCore(engine.scheduler, engine.runner, clock=time.monotonic)
    died = deaths if deaths is not None else []
    async_engine = AsyncEngine(
        CoreThread(core), stats=core.stats(), observers=list(observers), on_death=died.append
    )
    async_engine.start()
    try:
        yield async_engine
    finally:
        assert await async_engine.stop(5)


async def read_all(request: OpenRequest) -> list[int]:
    await request.admitted()
    return [token async for update in request.updates() for token in update.new_token_ids]


async def test_requests_run_side_by_side() -> None:
    watcher = Watcher()
    async with running(make_fake_engine(), watcher) as engine:
        requests = [engine.open(make_spec(f"r{i}", max_tokens=5 + i)) for i in range(3)]
        tokens = await asyncio.gather(*map(read_all, requests))
        assert [len(one) for one in tokens] == [5, 6, 7]
        assert engine.num_open_requests == 0
    assert [record.finish_reason for record in watcher.records] == [FinishReason.LENGTH] * 3


async def test_what_the_scheduler_refuses_is_raised() -> None:
    steps = threading.Semaphore(0)  # one release lets one step end
    fake = make_fake_engine(
        max_num_seqs=1, max_queued_requests=0, before_result=lambda _: steps.acquire()
    )
    async with running(fake) as engine:
        with pytest.raises(ContextTooLong):
            await engine.open(make_spec("long", num_prompt_tokens=2000)).admitted()
        first = engine.open(make_spec("a", max_tokens=1000))
        await first.admitted()
        second = engine.open(make_spec("b"))
        steps.release()
        with pytest.raises(Overloaded):
            await second.admitted()
        assert engine.num_open_requests == 1
        first.close()
        steps.release(1000)


class TestI3Abort:
    async def test_frees_everything_and_counts_once(self) -> None:
        watcher = Watcher()
        async with running(
            make_fake_engine(max_num_seqs=2, before_result=pace()), watcher
        ) as engine:
            requests = [engine.open(make_spec(f"r{i}", max_tokens=1000)) for i in range(4)]
            for request in requests:
                await request.admitted()
                request.close()
                request.close()
            await engine.wait_until_idle()
        assert [record.finish_reason for record in watcher.records] == [FinishReason.ABORT] * 4
        assert (watcher.stats.num_running, watcher.stats.num_waiting) == (0, 0)
        assert watcher.stats.num_used_blocks == 0

    async def test_of_what_has_ended_changes_nothing(self) -> None:
        watcher = Watcher()
        async with running(make_fake_engine(), watcher) as engine:
            request = engine.open(make_spec("a"))
            await read_all(request)
            request.close()
        assert [record.finish_reason for record in watcher.records] == [FinishReason.LENGTH]


async def test_j4_an_observer_that_raises_does_not_stop_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(make_fake_engine(), Clumsy()) as engine:
        with caplog.at_level(logging.ERROR):
            assert len(await read_all(engine.open(make_spec("a")))) == 5
    assert len(caplog.records) == 1, "the same trouble is told once"


async def test_i4_the_death_of_the_thread_is_told_to_all() -> None:
    def fail(_: Any) -> None:
        raise MemoryError("no more")

    deaths: list[BaseException] = []
    async with running(make_fake_engine(before_result=fail), deaths=deaths) as engine:
        requests = [engine.open(make_spec(f"r{i}")) for i in range(3)]
        results = await asyncio.gather(*map(read_all, requests), return_exceptions=True)
        assert all(isinstance(result, EngineDied) for result in results)
        assert not engine.is_alive
        assert [type(death) for death in deaths] == [MemoryError]
        with pytest.raises(EngineDied):
            engine.open(make_spec("late"))


async def test_the_results_of_a_step_cross_to_the_event_loop_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = Watcher()
    calls = 0
    deliver = AsyncEngine._deliver

    def count(self: AsyncEngine, events: Any) -> None:
        nonlocal calls
        calls += 1
        deliver(self, events)

    monkeypatch.setattr(AsyncEngine, "_deliver", count)
    async with running(make_fake_engine(), watcher) as engine:
        requests = [engine.open(make_spec(f"r{i}", max_tokens=50)) for i in range(8)]
        await asyncio.gather(*map(read_all, requests))
    assert calls <= watcher.num_steps + len(requests)


async def test_an_idle_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    has_work = EngineCore.has_work

    def count(self: EngineCore) -> bool:
        nonlocal looks
        looks += 1
        return has_work(self)

    monkeypatch.setattr(EngineCore, "has_work", count)
    async with running(make_fake_engine()) as engine:
        await read_all(engine.open(make_spec("a")))
        await asyncio.sleep(0.02)
        before = looks
        await asyncio.sleep(0.05)
        assert looks == before


@pytest.mark.parametrize("depth", [0, 1])
async def test_a_storm_of_requests_and_aborts_leaves_nothing_behind(depth: int) -> None:
    rng = random.Random(depth)
    watcher = Watcher()
    fake = make_fake_engine(
        num_blocks=40, max_num_seqs=5, async_depth=depth, before_result=pace(0.0005)
    )

    async def client(number: int) -> None:
        spec = make_spec(
            f"r{number}", num_prompt_tokens=rng.randint(1, 30), max_tokens=rng.randint(1, 90)
        )
        request = engine.open(spec)
        patience = rng.choice([0, 1, 5, 1000])
        try:
            await request.admitted()
            async for _ in request.updates():
                patience -= 1
                if patience < 0:
                    break
        finally:
            request.close()

    async with running(fake, watcher) as engine:
        await asyncio.gather(*map(client, range(80)))
        await engine.wait_until_idle()
    fake.scheduler.check_invariants()
    assert len(watcher.records) == 80
    assert sum(watcher.stats.finished.values()) == 80
    assert {FinishReason.ABORT, FinishReason.LENGTH} == {r.finish_reason for r in watcher.records}
    assert (watcher.stats.num_used_blocks, watcher.stats.num_waiting) == (0, 0)
    assert watcher.stats.num_preemptions > 0, "the pool is small enough to matter"
