"""`octavo operator`: hold the Lease, watch, reconcile."""

import asyncio
import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import kopf

from octavo_operator.core.render.deployment import ImageSource
from octavo_operator.settings import OperatorSettings, SettingError, parse_settings
from octavo_operator.shell.cluster import Cluster, ClusterError
from octavo_operator.shell.handlers import (
    WATCHED_CHILDREN,
    make_kopf_settings,
    make_registry,
    watch_children,
)
from octavo_operator.shell.health import serve_health
from octavo_operator.shell.lease import LeaderLease, LeaseLost
from octavo_operator.shell.reconcile import Reconciler
from octavo_operator.shell.work_queue import WorkQueue
from octavo_wire.names import API_GROUP, API_VERSION, KIND

logger = logging.getLogger("octavo_operator")

RETRY_S: Final = 3.0
REMIND_EVERY: Final = 20
KOPF_EXIT_S: Final = 10.0


def main(argv: Sequence[str]) -> int:
    """Run the operator until it is told to stop (0) or cannot go on (1); 2 for wrong flags."""
    try:
        settings = parse_settings(argv, os.environ, importlib.metadata.version("octavo"))
    except SettingError as error:
        print(f"octavo operator: {error}", file=sys.stderr)  # noqa: T201
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # kopf narrates its own life at INFO; ours is in our own words.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.root.level))
    # kopf makes itself a name of the user's, which a numeric user of a container does not have.
    os.environ.setdefault("POD_ID", settings.identity)
    try:
        return asyncio.run(_run(settings))
    except KeyboardInterrupt:
        return 0
    except ClusterError as error:
        print(f"octavo operator: {error}", file=sys.stderr)  # noqa: T201
        return 1


async def _run(settings: OperatorSettings) -> int:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with await Cluster.connect() as cluster:
        logger.info("octavo operator %s on %s", settings.engine_version, cluster.host)
        try:
            health = serve_health(settings.health_host, settings.health_port)
            async with health as port:
                logger.info("health endpoint on %s:%d", settings.health_host, port)
                return await _lead(settings, cluster, stop)
        except OSError as error:
            logger.error(
                "no health endpoint on %s:%d: %s; name a free one with --health-port",
                settings.health_host,
                settings.health_port,
                error,
            )
            return 1


async def _lead(settings: OperatorSettings, cluster: Cluster, stop: asyncio.Event) -> int:
    lease = LeaderLease(
        cluster,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity,
        duration_s=settings.lease_duration_s,
    )

    async def get_ready() -> None:
        await _wait_for_kind(cluster)
        await lease.acquire()

    try:
        if not await _unless_stopped(get_ready(), stop):
            return 0
        return await _operate(settings, cluster, lease, stop)
    finally:
        await lease.release()


async def _operate(
    settings: OperatorSettings, cluster: Cluster, lease: LeaderLease, stop: asyncio.Event
) -> int:
    queue = WorkQueue(asyncio.get_running_loop().time)
    images = ImageSource(registry=settings.image_registry, version=settings.engine_version)
    ours = [
        asyncio.create_task(lease.hold(), name="lease"),
        asyncio.create_task(Reconciler(cluster, queue, images).run(), name="workers"),
    ]
    for kind in WATCHED_CHILDREN:
        for namespace in settings.namespaces or (None,):
            watching = watch_children(cluster, queue, kind, namespace)
            ours.append(asyncio.create_task(watching, name=f"watch of {kind}s"))
    stop_kopf, kopf_ready = asyncio.Event(), asyncio.Event()
    kopf_task = asyncio.create_task(
        kopf.operator(
            registry=make_registry(queue),
            settings=make_kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=stop_kopf,
            ready_flag=kopf_ready,
        ),
        name="kopf",
    )
    signals = asyncio.create_task(_take_signals_back(kopf_ready, stop), name="signals")
    told = asyncio.create_task(stop.wait(), name="stop")
    ended, _ = await asyncio.wait({*ours, kopf_task, told}, return_when=asyncio.FIRST_COMPLETED)
    # Our writers go first: without the Lease nothing may be written any more.
    for task in (*ours, signals, told):
        task.cancel()
    await asyncio.wait({*ours, signals, told})
    stop_kopf.set()
    await asyncio.wait({kopf_task}, timeout=KOPF_EXIT_S)
    return _report_end(ended)


async def _take_signals_back(kopf_ready: asyncio.Event, stop: asyncio.Event) -> None:
    """Handle signals ourselves: kopf, told first, would cancel tasks that are not its own."""
    await kopf_ready.wait()
    _stop_on_signals(stop)


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)


def _report_end(ended: set[asyncio.Task[Any]]) -> int:
    """Say what ended the process; 0 when it was told to stop, 1 when a part of it gave up."""
    status = 0
    for task in ended:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LeaseLost):
            logger.error("stopped acting: %s", error)
            status = 1
        elif task.get_name() not in ("stop", "kopf") or error is not None:
            logger.error("%s ended", task.get_name(), exc_info=error)
            status = 1
    logger.info("stopped")
    return status


async def _wait_for_kind(cluster: Cluster) -> None:
    """Return once the cluster knows InferenceServices; says what to do meanwhile."""
    for attempt in range(sys.maxsize):
        try:
            if await cluster.knows_kind():
                return
            problem = (
                f"the cluster does not know the kind {KIND} ({API_GROUP}/{API_VERSION}): install "
                "it with `kubectl apply -f crds/inferenceservices.yaml`, or the chart"
            )
        except ClusterError as error:
            problem = f"the cluster does not answer: {error}"
        if attempt % REMIND_EVERY == 0:
            logger.error("%s; waiting for it", problem)
        await asyncio.sleep(RETRY_S)


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Finish `work` (True), or drop it when told to stop (False)."""
    tasks = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.wait(tasks)
    for task in ended:
        task.result()
    return not stop.is_set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
