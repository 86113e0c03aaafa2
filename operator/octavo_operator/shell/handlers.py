"""Where keys come from: kopf tells of our own kind, and watches of ours of the children."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

import kopf

from octavo_operator.core.names import OWNED_SELECTOR
from octavo_operator.shell.cluster import (
    REQUEST_TIMEOUT_S,
    WATCH_CLIENT_TIMEOUT_S,
    WATCH_SERVER_TIMEOUT_S,
    Cluster,
    ClusterError,
    uses_service_account,
)
from octavo_operator.shell.work_queue import Key, WorkQueue
from octavo_wire.names import API_GROUP, API_VERSION, LABEL_SERVICE, PLURAL

logger = logging.getLogger(__name__)

WATCHED_CHILDREN: Final = ("Deployment", "Service", "Pod")
_SHORTEST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
# A watch that lived so long has worked; one that ends sooner is asked for ever more rarely.
_STEADY_S: Final = 10.0
_TOO_OLD: Final = 410


def make_registry(queue: WorkQueue) -> kopf.OperatorRegistry:
    """A registry with the one handler that we need: it puts keys on the queue."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="login")
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if uses_service_account():
            return kopf.login_with_service_account(**kwargs)
        return kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(API_GROUP, API_VERSION, PLURAL, registry=registry, id="enqueue")
    async def enqueue(name: str | None, namespace: str | None, **_: Any) -> None:
        if name is not None and namespace is not None:
            queue.add(Key(namespace, name))

    return registry


def make_kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # Without it kopf lists CRDs and namespaces cluster-wide, which nothing here needs.
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_SERVER_TIMEOUT_S
    settings.watching.client_timeout = WATCH_CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.connect_timeout = 10
    settings.networking.enforce_retry_after = True
    settings.execution.default_backoff = 10
    # Event handlers store nothing; should one ever do, it would be under our own name.
    settings.persistence.finalizer = f"{API_GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix=API_GROUP, v1=False
    )
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=API_GROUP, v1=False
    )
    return settings


async def watch_children(
    cluster: Cluster,
    queue: WorkQueue,
    kind: str,
    namespace: str | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Put the owner's key on the queue for whatever happens to our objects of that kind.

    However a watch ends, a pause follows; the next one goes on from where it ended.
    """
    version, pause_s = "", _SHORTEST_PAUSE_S
    while True:
        started_s = clock()
        try:
            if not version:
                items, version = await cluster.list(kind, namespace, OWNED_SELECTOR)
                for item in items:
                    _enqueue_owner(queue, item)
                started_s = clock()
            version = await _follow(cluster, queue, kind, namespace, version)
        except ClusterError as error:
            version = ""
            if error.status != _TOO_OLD:
                logger.warning("watching %ss: %s; again in %.0f s", kind, error, pause_s)
        if clock() - started_s >= _STEADY_S:
            pause_s = _SHORTEST_PAUSE_S
        await sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


async def _follow(
    cluster: Cluster, queue: WorkQueue, kind: str, namespace: str | None, version: str
) -> str:
    """One watch from `version` to its end; returns the version to go on from."""
    async for event in cluster.watch(kind, namespace, OWNED_SELECTOR, version):
        if event.type == "ERROR":
            code = int(event.object.get("code") or 0)
            raise ClusterError(str(event.object.get("message") or "watch failed"), status=code)
        version = str(event.object["metadata"]["resourceVersion"])
        if event.type != "BOOKMARK":
            _enqueue_owner(queue, event.object)
    return version


def _enqueue_owner(queue: WorkQueue, child: Mapping[str, Any]) -> None:
    meta = child["metadata"]
    owner = (meta.get("labels") or {}).get(LABEL_SERVICE)
    if owner:
        queue.add(Key(meta["namespace"], owner))
