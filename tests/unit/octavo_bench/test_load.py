"""Who sends when: in fake time, against a server that is a coroutine."""

import asyncio

import pytest

from octavo_bench.load import Progress, run_closed, run_open
from octavo_bench.records import Record
from octavo_bench.workload import Job


class FakeServer:
    """Answers when it is told to; notes how many wait at once."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sent_s: list[float] = []
        self.most_open = self.open = 0
        self.gate = asyncio.Event()

    async def send(self, job: Job, prompt: str) -> Record:
        sent_s = self.now_s
        self.sent_s.append(sent_s)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await self.gate.wait()
        self.open -= 1
        return Record(sent_s=sent_s, ended_s=self.now_s, finish_reason=prompt)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)  # what was sent before starts before time goes on
        self.now_s += seconds


async def let_tasks_run() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def jobs(*due_s: float | None) -> list[tuple[Job, str]]:
    return [
        (Job(due_s=due, prompt_tokens=1, output_tokens=1), f"p{number}")
        for number, due in enumerate(due_s)
    ]


async def test_a_closed_load_has_as_many_open_as_there_are_clients() -> None:
    server, progress = FakeServer(), Progress(10)
    run = asyncio.create_task(
        run_closed(server.send, jobs(*[None] * 10), concurrency=3, progress=progress)
    )
    await let_tasks_run()
    assert (server.open, progress.sent, progress.done) == (3, 3, 0)
    server.gate.set()
    records = await run
    assert server.most_open == 3
    assert sorted(str(r.finish_reason) for r in records) == [f"p{n}" for n in range(10)]
    assert (progress.sent, progress.done, progress.failed) == (10, 10, 0)


async def test_an_open_load_sends_on_time_while_nothing_is_answered() -> None:
    server, progress = FakeServer(), Progress(3)
    run = asyncio.create_task(
        run_open(
            server.send,
            jobs(0.0, 0.5, 2.0),
            progress=progress,
            clock=lambda: server.now_s,
            sleep=server.sleep,
        )
    )
    await let_tasks_run()
    assert (server.open, progress.done) == (3, 0), "it waits for no answer"
    server.gate.set()
    records = await run
    assert server.sent_s == pytest.approx([100.0, 100.5, 102.0])
    assert [record.late_s for record in records] == pytest.approx([0, 0, 0])


async def test_a_client_that_falls_behind_says_how_late_it_was() -> None:
    server = FakeServer()
    server.gate.set()

    async def oversleep(seconds: float) -> None:
        await server.sleep(seconds + 0.25)

    records = await run_open(
        server.send,
        jobs(1.0, 1.1),
        progress=Progress(2),
        clock=lambda: server.now_s,
        sleep=oversleep,
    )
    assert [record.late_s for record in records] == pytest.approx([0.25, 0.15])
