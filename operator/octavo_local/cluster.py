"""What the controllers and the node ask of the Kubernetes API, over the store in this process."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import EVENTS, Resource
from octavo_local.apiserver.storage import DELETED
from octavo_local.apiserver.store import Store
from octavo_local.objects import Object, format_time, name_of, namespace_of, random_suffix

_LOG = logging.getLogger(__name__)
_MIN_PRUNED: Final = 256  # events that a recorder remembers before it looks for expired ones
Modify = Callable[[Object], Object | None]


class Cluster:
    """All calls are immediate: the store lives in this process and this event loop.

    Objects that it gives are the stored ones: read them, never change them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        return list(self._store.storage.scan(resource.table, namespace))

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._store.storage.get(resource.table, namespace, name)

    def create(self, resource: Resource, item: Object) -> Object:
        namespace = namespace_of(item) if resource.namespaced else None
        return self._store.create(resource, namespace, deepcopy(item))

    def modify(self, resource: Resource, namespace: str, name: str, change: Modify) -> None:
        """Write what `change` makes of the object (a new one), unless it returns None."""
        item = self.get(resource, namespace, name)
        changed = None if item is None else change(item)
        if changed is not None:
            self._store.update(resource, namespace, name, deepcopy(changed))

    def write_status(self, resource: Resource, item: Mapping[str, Any], status: Object) -> bool:
        """Replace the status of the object that `item` is a version of; False: nothing to do."""
        key = namespace_of(item), name_of(item)
        current = self.get(resource, *key)
        if current is None or current["metadata"]["uid"] != item["metadata"]["uid"]:
            return False
        if (current.get("status") or {}) == status:
            return False
        changed = deepcopy(current | {"status": status})
        self._store.update(resource, *key, changed, "status")
        return True

    def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete the object if it is still the one with `uid`."""
        current = self.get(resource, namespace, name)
        if current is not None and current["metadata"]["uid"] == uid:
            self._store.delete(resource, namespace, name, grace_s, uid=uid)

    def watch(self, resources: Sequence[Resource]) -> "Changes":
        """Every change to objects of these kinds, from now on."""
        return Changes(self._store, resources)


class Changes:
    """A queue of changes; close it when done."""

    def __init__(self, store: Store, resources: Sequence[Resource]) -> None:
        self._tables = {resource.table: resource for resource in resources}
        self._subscription = store.storage.subscribe(None)

    async def next(self) -> tuple[Resource, Object, bool]:
        """The kind, the object as it is (or was), and whether it is gone."""
        while True:
            change = await self._subscription.next()
            if change.table in self._tables:
                return self._tables[change.table], change.obj, change.type == DELETED

    def close(self) -> None:
        self._subscription.close()


class EventRecorder:
    """Writes Events; one that repeats counts up instead of filling the store."""

    def __init__(self, cluster: Cluster, component: str, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._component = component
        self._now = now
        self._names: dict[tuple[str, str, str], tuple[str, str]] = {}  # to namespace, name
        self._prune_at = _MIN_PRUNED

    def record(
        self,
        regarding: Mapping[str, Any],
        kind: str,
        reason: str,
        message: str,
        *,
        is_warning: bool = False,
        field_path: str = "",
    ) -> None:
        """Say that something happened to an object.

        What happened goes on whether or not it can be told: a namespace that is being deleted
        takes no new events, and its pods must end all the same.
        """
        try:
            self._record(regarding, kind, reason, message, is_warning, field_path)
        except ApiError as error:
            _LOG.info("event %s of %s not recorded: %s", reason, name_of(regarding), error)

    def _record(
        self,
        regarding: Mapping[str, Any],
        kind: str,
        reason: str,
        message: str,
        is_warning: bool,
        field_path: str,
    ) -> None:
        metadata = regarding["metadata"]
        namespace = namespace_of(regarding) or "default"
        key = (str(metadata["uid"]), reason, message)
        moment = format_time(self._now())

        def count_up(event: Object) -> Object:
            return event | {"count": int(event.get("count") or 1) + 1, "lastTimestamp": moment}

        known = self._names.get(key)
        if known and self._cluster.get(EVENTS, *known):
            self._cluster.modify(EVENTS, *known, count_up)
            return
        if len(self._names) >= self._prune_at:
            self._forget_expired()
        name = f"{name_of(regarding)}.{random_suffix(10)}"
        self._names[key] = namespace, name
        self._cluster.create(
            EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": regarding.get("apiVersion", "v1"),
                    "kind": kind,
                    "name": name_of(regarding),
                    "namespace": namespace_of(regarding),
                    "uid": metadata["uid"],
                    **({"fieldPath": field_path} if field_path else {}),
                },
                "reason": reason,
                "message": message,
                "type": "Warning" if is_warning else "Normal",
                "source": {"component": self._component},
                "reportingComponent": self._component,
                "reportingInstance": "local",
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "count": 1,
            },
        )

    def _forget_expired(self) -> None:
        """Drop what the store has dropped; next time when there is twice of what is left."""
        self._names = {
            key: event for key, event in self._names.items() if self._cluster.get(EVENTS, *event)
        }
        self._prune_at = max(_MIN_PRUNED, 2 * len(self._names))


async def next_within(
    changes: Changes, wait_s: float | None
) -> tuple[Resource, Object, bool] | None:
    """The next change, or None when `wait_s` pass without one."""
    try:
        async with asyncio.timeout(wait_s):
            return await changes.next()
    except TimeoutError:
        return None
