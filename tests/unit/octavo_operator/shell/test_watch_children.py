"""Watches that end, break and start anew, by a clock that only sleeping and events move."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo_operator.shell.cluster import ClusterError, WatchEvent
from octavo_operator.shell.handlers import watch_children
from octavo_operator.shell.work_queue import Key, WorkQueue
from support.fake_cluster import FakeCluster


class Enough(Exception):
    pass


class Watching(FakeCluster):
    """Every watch lives `life_s`, then ends or raises `error`; `seen` are their versions."""

    def __init__(self, *, pauses: int) -> None:
        super().__init__()
        self.now_s = 0.0
        self.life_s = 0.0
        self.error: ClusterError | None = None
        self.seen: list[str] = []
        self.lists = 0
        self.pauses: list[float] = []
        self._most_pauses = pauses

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)
        if len(self.pauses) == self._most_pauses:
            raise Enough

    async def list(
        self, kind: str, namespace: str | None, selector: str
    ) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        return await super().list(kind, namespace, selector)

    async def watch(
        self, kind: str, namespace: str | None, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        self.seen.append(resource_version)
        self.now_s += self.life_s
        async for event in super().watch(kind, namespace, selector, resource_version):
            yield event
        if self.error is not None:
            raise self.error

    async def run(self) -> WorkQueue:
        queue = WorkQueue(lambda: self.now_s)
        with pytest.raises(Enough):
            async with asyncio.timeout(10):
                await watch_children(
                    self, queue, "Pod", None, clock=lambda: self.now_s, sleep=self.sleep
                )
        return queue


def pod_event(version: int, kind: str = "MODIFIED") -> WatchEvent:
    labels = {"serving.octavo.dev/inferenceservice": "chat"}
    meta = {"namespace": "team", "name": "p", "resourceVersion": str(version), "labels": labels}
    return WatchEvent(type=kind, object={"metadata": meta})


async def test_watches_that_end_at_once_are_asked_for_ever_more_rarely() -> None:
    cluster = Watching(pauses=7)
    await cluster.run()
    assert cluster.pauses == [1, 2, 4, 8, 16, 30, 30]
    assert cluster.lists == 1


@pytest.mark.parametrize("status", [410, 500])
async def test_lists_that_work_do_not_hide_watches_that_fail(status: int) -> None:
    cluster = Watching(pauses=7)
    cluster.error = ClusterError("no", status=status)
    await cluster.run()
    assert cluster.pauses == [1, 2, 4, 8, 16, 30, 30]
    assert cluster.lists == 7


async def test_a_watch_that_lived_long_is_followed_by_the_next_after_a_short_pause() -> None:
    cluster = Watching(pauses=4)
    cluster.life_s = 290
    cluster.watches = [[pod_event(5)], [pod_event(9, "BOOKMARK")]]
    queue = await cluster.run()
    assert cluster.pauses == [1, 1, 1, 1]
    assert cluster.seen == ["0", "5", "9", "9"]
    assert await queue.get() == Key("team", "chat")


async def test_an_error_within_a_watch_starts_from_a_new_list() -> None:
    cluster = Watching(pauses=2)
    too_old = WatchEvent(type="ERROR", object={"code": 410, "message": "too old"})
    cluster.watches = [[too_old]]
    await cluster.run()
    assert cluster.lists == 2
    assert cluster.pauses == [1, 2]
