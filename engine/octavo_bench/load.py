"""Sending the jobs: clients that wait for answers, or arrivals that wait for nobody."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from octavo_bench.records import Record
from octavo_bench.workload import Job

Send = Callable[[Job, str], Awaitable[Record]]


@dataclass(slots=True)
class Progress:
    """How far a run is; the terminal's line reads it."""

    total: int
    sent: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> int:
        return sum(record.failure is not None for record in self.records)


async def run_closed(
    send: Send, work: Sequence[tuple[Job, str]], *, concurrency: int, progress: Progress
) -> list[Record]:
    """`concurrency` clients, each of which sends its next request when the last was answered."""

    async def client(pending: Iterator[tuple[Job, str]]) -> None:
        for job, prompt in pending:
            progress.sent += 1
            progress.records.append(await send(job, prompt))

    pending = iter(work)  # shared: each client takes the next job
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(work))):
            group.create_task(client(pending))
    return progress.records


async def run_open(
    send: Send,
    work: Sequence[tuple[Job, str]],
    *,
    progress: Progress,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Record]:
    """Each job is sent when it is due, however many are unanswered; jobs are in order of time."""

    async def one(job: Job, prompt: str, due_s: float) -> None:
        record = await send(job, prompt)
        progress.records.append(replace(record, late_s=max(0.0, record.sent_s - due_s)))

    start_s = clock()
    async with asyncio.TaskGroup() as group:
        for job, prompt in work:
            assert job.due_s is not None, "open-loop jobs have a time"
            due_s = start_s + job.due_s
            if (wait_s := due_s - clock()) > 0:
                await sleep(wait_s)
            progress.sent += 1
            group.create_task(one(job, prompt, due_s))
    return progress.records
