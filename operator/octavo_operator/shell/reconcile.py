"""One look at one InferenceService, and the workers that take the looks."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NoReturn

from octavo_operator.core.observed import Manifest
from octavo_operator.core.obstacles import explain_refused_write
from octavo_operator.core.plan import Plan, make_plan
from octavo_operator.core.render.deployment import ImageSource
from octavo_operator.shell.apply import apply_children, apply_status
from octavo_operator.shell.cluster import Cluster, ClusterError
from octavo_operator.shell.gather import gather
from octavo_operator.shell.work_queue import Key, WorkQueue

logger = logging.getLogger(__name__)

NUM_WORKERS: Final = 4
FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 120.0


class Reconciler:
    """Turns keys into looks; failed looks come again, ever later."""

    def __init__(
        self,
        cluster: Cluster,
        queue: WorkQueue,
        images: ImageSource,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._images = images
        self._now = now
        self._failures: dict[Key, int] = {}

    async def run(self) -> NoReturn:
        """Work for ever, NUM_WORKERS keys at a time."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(NUM_WORKERS):
                workers.create_task(self._work())
        raise AssertionError("workers never end by themselves")

    async def _work(self) -> NoReturn:
        while True:
            key = await self._queue.get()
            try:
                await self._look(key)
            finally:
                self._queue.done(key)

    async def _look(self, key: Key) -> None:
        try:
            after_s = await self.reconcile(key)
        except ClusterError as error:
            delay_s = self._back_off(key)
            logger.warning("%s: %s; again in %.0f s", key, error, delay_s)
            self._queue.add(key, delay_s)
        except Exception:
            # A bug that one object brings to light must not stop the others from being served.
            delay_s = self._back_off(key)
            logger.exception("%s: cannot be reconciled; again in %.0f s", key, delay_s)
            self._queue.add(key, delay_s)
        else:
            if after_s is not None:
                self._queue.add(key, after_s)

    async def reconcile(self, key: Key) -> float | None:
        """Look once and act; returns seconds until the next look, None when the object is gone.

        Raises ClusterError where the cluster could not be asked.
        """
        observed = await gather(self._cluster, key.namespace, key.name)
        if observed is None:
            self._failures.pop(key, None)
            self._queue.forget(key)
            return None
        plan = make_plan(observed, self._now(), self._images)
        try:
            await apply_children(self._cluster, plan)
        except ClusterError as error:
            obstacle = explain_refused_write(error.status, str(error))
            if obstacle is None:
                raise
            # The cluster said no: the user is told why, and asking again can wait.
            plan = make_plan(observed, self._now(), self._images, obstacle)
            await self._write_status(observed.service, plan)
            return self._back_off(key)
        await self._write_status(observed.service, plan)
        self._failures.pop(key, None)
        return plan.check_after_s

    async def _write_status(self, service: Manifest, plan: Plan) -> None:
        try:
            await apply_status(self._cluster, service, plan, self._now())
        except ClusterError as error:
            if error.status != 404:  # deleted while we looked
                raise

    def _back_off(self, key: Key) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures, 10))
