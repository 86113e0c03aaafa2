import asyncio

import pytest

from octavo_operator.shell.work_queue import Key, WorkQueue

A, B = Key("team", "a"), Key("team", "b")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock, min_interval_s=1.0)


async def nothing_is_due(queue: WorkQueue) -> bool:
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    still_waiting = not getting.done()
    getting.cancel()
    await asyncio.gather(getting, return_exceptions=True)
    return still_waiting


async def test_many_adds_make_one_look(queue: WorkQueue) -> None:
    for _ in range(3):
        queue.add(A)
    assert await queue.get() == A
    queue.done(A)
    assert await nothing_is_due(queue)


async def test_a_key_in_work_is_not_handed_out_again(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    assert await queue.get() == A
    queue.add(A)
    clock.now_s += 10
    assert await nothing_is_due(queue)
    queue.done(A)
    assert await queue.get() == A


async def test_another_key_passes_one_in_work(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.get()
    queue.add(A)
    queue.add(B)
    assert await queue.get() == B


async def test_looks_at_one_key_keep_their_distance(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    await queue.get()
    queue.done(A)
    queue.add(A)
    assert await nothing_is_due(queue)
    clock.now_s += 1.0
    assert await queue.get() == A


async def test_the_earlier_of_two_times_counts(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A, after_s=300)
    queue.add(A, after_s=5)
    queue.add(A, after_s=60)
    clock.now_s += 4.9
    assert await nothing_is_due(queue)
    clock.now_s += 0.2
    assert await queue.get() == A
    queue.done(A)
    clock.now_s += 1000
    assert await nothing_is_due(queue)


async def test_a_waiting_worker_is_woken_by_an_add(queue: WorkQueue) -> None:
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(B)
    assert await getting == B
