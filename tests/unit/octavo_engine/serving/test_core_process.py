"""A core in a process of its own: the same answers, and a death that is told."""

import asyncio
import os
import signal
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestRecord, RequestSpec, SchedulerStats
from octavo_engine.errors import CannotStart, ContextTooLong, Overloaded
from octavo_engine.serving import core_process
from octavo_engine.serving.async_engine import AsyncEngine, EngineDied, OpenRequest
from octavo_engine.serving.core_messages import CoreEvents, StepSummary
from octavo_engine.serving.core_process import CoreProcess, launch_process
from octavo_engine.serving.core_thread import launch_in_thread
from octavo_engine.serving.launch import CoreLost, Launch
from octavo_wire.failures import Reason
from octavo_wire.settings import EngineSettings
from support.fake_core import fake_core
from support.serving import make_fake_engine

SETTINGS = EngineSettings(model="tiny.gguf")


class Watcher:
    def __init__(self) -> None:
        self.stats = SchedulerStats()
        self.steps: list[StepSummary] = []
        self.records: list[RequestRecord] = []

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        self.stats = stats
        self.steps.append(step)

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None:
        self.stats = stats
        self.records.append(record)


class Process:
    """A launched core and what is known of its end."""

    def __init__(self) -> None:
        self.watcher = Watcher()
        self.death: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.progress: list[tuple[str, float]] = []
        self.link: CoreProcess
        self.engine: AsyncEngine


@asynccontextmanager
async def running(launch: Launch) -> AsyncIterator[Process]:
    process = Process()
    launched = await launch(lambda phase, share: process.progress.append((phase, share)))
    if isinstance(launched.link, CoreProcess):
        process.link = launched.link
    process.engine = AsyncEngine(
        launched.link,
        stats=launched.core.stats,
        observers=[process.watcher],
        on_death=process.death.set_result,
    )
    process.engine.start()
    try:
        yield process
    finally:
        assert await process.engine.stop(5)


def make_spec(name: str, *, num_prompt_tokens: int = 3, max_tokens: int = 5) -> RequestSpec:
    return RequestSpec(
        request_id=name,
        prompt_token_ids=list(range(1, num_prompt_tokens + 1)),
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_s=time.monotonic(),
    )


async def read_all(request: OpenRequest) -> list[int]:
    await request.admitted()
    return [token async for update in request.updates() for token in update.new_token_ids]


async def within(event: "asyncio.Future[BaseException]") -> BaseException:
    return await asyncio.wait_for(event, 10)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def answers(launch: Launch) -> list[list[int]]:
    async with running(launch) as process:
        specs = [make_spec(f"r{i}", num_prompt_tokens=1 + i, max_tokens=9 + i) for i in range(12)]
        return await asyncio.gather(*(read_all(process.engine.open(spec)) for spec in specs))


async def test_it_answers_as_a_core_in_a_thread_does() -> None:
    apart = await answers(launch_process(SETTINGS, fake_core()))
    together = await answers(launch_in_thread(lambda _: make_fake_engine()))
    assert apart == together
    assert [len(tokens) for tokens in apart] == [9 + i for i in range(12)]


async def test_a_step_is_one_message_and_so_are_the_commands_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[object] = []
    sent: list[object] = []
    decode, encode = core_process.decode_core_message, core_process.encode
    monkeypatch.setattr(
        core_process, "decode_core_message", lambda data: received.append(1) or decode(data)
    )
    monkeypatch.setattr(core_process, "encode", lambda what: sent.append(what) or encode(what))
    async with running(launch_process(SETTINGS, fake_core())) as process:
        del received[:], sent[:]
        requests = [process.engine.open(make_spec(f"r{i}", max_tokens=40)) for i in range(8)]
        await asyncio.gather(*map(read_all, requests))
        assert len(sent) == 1, "eight requests were opened in one turn of the loop"
        assert len(received) == len(process.watcher.steps) + 1, "a word for the admissions"
        assert len(process.watcher.steps) == 40


async def test_what_the_scheduler_refuses_keeps_its_words() -> None:
    async with running(launch_process(SETTINGS, fake_core("small"))) as process:
        with pytest.raises(ContextTooLong, match="1024 tokens"):
            await process.engine.open(make_spec("long", num_prompt_tokens=2000)).admitted()
        first = process.engine.open(make_spec("a", max_tokens=1000))
        await first.admitted()
        with pytest.raises(Overloaded) as caught:
            await process.engine.open(make_spec("b")).admitted()
        assert caught.value.retry_after_s >= 1
        first.close()
    ends = [record.finish_reason for record in process.watcher.records]
    assert ends == [FinishReason.ABORT], "what was refused is no request that ended"
    assert process.watcher.stats.num_used_blocks == 0


async def test_loading_is_told_and_the_socket_is_for_this_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []
    modes: list[int] = []
    make = core_process._make_socket_folder

    def watch() -> Path:
        folders.append(make())
        modes.append(stat.S_IMODE(folders[0].stat().st_mode))
        return folders[0]

    monkeypatch.setattr(core_process, "_make_socket_folder", watch)
    async with running(launch_process(SETTINGS, fake_core())) as process:
        assert process.progress == [("weights", 0.5)]
        assert modes == [0o700]
        assert not folders[0].exists(), "nothing is left behind, however the server ends"
        assert len(await read_all(process.engine.open(make_spec("a")))) == 5


async def test_a_model_that_cannot_be_loaded_is_the_users_to_put_right() -> None:
    with pytest.raises(CannotStart) as caught:
        await launch_process(SETTINGS, fake_core("refuses"))(lambda *_: None)
    failure = caught.value.failure
    assert (failure.reason, failure.message) == (Reason.INSUFFICIENT_MEMORY, "Too little memory.")


async def test_a_load_that_crashes_says_how() -> None:
    with pytest.raises(CoreLost, match="ZeroDivisionError: by zero"):
        await launch_process(SETTINGS, fake_core("crashes"))(lambda *_: None)


async def test_a_load_that_is_given_up_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[CoreProcess] = []
    spawn = CoreProcess.spawn

    async def watch(self: CoreProcess, command: list[str]) -> None:
        links.append(self)
        await spawn(self, command)

    monkeypatch.setattr(CoreProcess, "spawn", watch)
    loads = asyncio.Event()
    loading = asyncio.ensure_future(
        launch_process(SETTINGS, fake_core("hangs"))(lambda *_: loads.set())
    )
    await asyncio.wait_for(loads.wait(), 10)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert is_gone(links[0].pid)


async def test_i4_a_killed_core_is_told_to_every_open_request() -> None:
    async with running(launch_process(SETTINGS, fake_core("slow"))) as process:
        requests = [process.engine.open(make_spec(f"r{i}", max_tokens=500)) for i in range(3)]
        for request in requests:
            await request.admitted()
        os.kill(process.link.pid, signal.SIGKILL)
        results = await asyncio.gather(
            *(anext(aiter_all(request)) for request in requests), return_exceptions=True
        )
        assert all(isinstance(result, EngineDied) for result in results)
        assert "killed" in str(await within(process.death))
        assert not process.engine.is_alive
        with pytest.raises(EngineDied):
            process.engine.open(make_spec("late"))


async def aiter_all(request: OpenRequest) -> AsyncIterator[None]:
    """Ends by what the request raises; yields when it ends of itself."""
    async for _ in request.updates():
        pass
    yield


async def test_i4_a_core_that_fails_says_why() -> None:
    async with running(launch_process(SETTINGS, fake_core("fails"))) as process:
        with pytest.raises(EngineDied):
            await read_all(process.engine.open(make_spec("a", max_tokens=50)))
        assert str(await within(process.death)) == "MemoryError: no more"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_are_the_servers_to_answer(number: signal.Signals) -> None:
    async with running(launch_process(SETTINGS, fake_core("slow"))) as process:
        request = process.engine.open(make_spec("a", max_tokens=5))
        await request.admitted()
        os.kill(process.link.pid, number)
        assert len([update async for update in request.updates()]) == 5
        assert process.engine.is_alive


async def test_a_word_from_the_core_is_read_back_to_the_same() -> None:
    words: list[CoreEvents] = []
    async with running(launch_process(SETTINGS, fake_core())) as process:
        deliver = process.link._on_events
        assert deliver is not None
        process.link._on_events = lambda events: (words.append(events), deliver(events))[1]
        await read_all(process.engine.open(make_spec("a")))
    records = [u.record for word in words for s in word.steps for u in s.updates if u.record]
    assert records == process.watcher.records
    assert records[0].finish_reason is FinishReason.LENGTH
    assert set(words[-1].stats.finished) == set(FinishReason)
    assert records[0].arrival_s <= records[0].finished_s, "both processes read one clock"


async def test_a_word_that_cannot_be_taken_in_is_an_end_and_no_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(launch_process(SETTINGS, fake_core("slow"))) as process:
        request = process.engine.open(make_spec("a", max_tokens=500))
        await request.admitted()
        monkeypatch.setattr(core_process, "decode_core_message", lambda data: 1 // 0)
        with pytest.raises(EngineDied):
            async for _ in request.updates():
                pass
        await within(process.death)
    assert "not taken in" in caplog.text
