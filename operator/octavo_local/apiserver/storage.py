"""Objects by table and name, one version counter, and the history that watches replay.

Invariant: a stored object is never changed, it is replaced; so readers may hold it as long as they
like.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import ApiError, expired
from .resources import Object

Table = tuple[str, str]
Key = tuple[str, str]  # namespace ("" for cluster-wide objects), name

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"

HISTORY_LENGTH = 10_000
# Changes that a watch may lag behind: one whose reader has stopped must not fill the memory.
MAX_LAG = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of the history; `before` is what the object was, None for a new one."""

    version: int
    type: str
    table: Table
    obj: Object
    before: Object | None


class Subscription:
    """A queue of the changes of one table (of all, if None), until it is closed.

    With `max_lag` it ends when so many changes wait: what waits is dropped, `next` raises a 410.
    """

    def __init__(self, storage: "Storage", table: Table | None, max_lag: int | None) -> None:
        self._storage = storage
        self._table = table
        self._max_lag = max_lag
        self._queue: asyncio.Queue[Change | ApiError] = asyncio.Queue()

    def offer(self, change: Change) -> None:
        if self._table is None or change.table == self._table:
            self._queue.put_nowait(change)

    def end_if_late(self) -> None:
        if self._max_lag is None or self._queue.qsize() <= self._max_lag:
            return
        self.close()
        self._queue = asyncio.Queue()  # who waits at the old one gets what comes first there
        self._queue.put_nowait(expired(self._storage.version))

    async def next(self) -> Change:
        change = await self._queue.get()
        if isinstance(change, ApiError):
            raise change
        return change

    def close(self) -> None:
        self._storage.unsubscribe(self)


class Storage:
    """Not safe across threads: everything happens in one event loop."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[Key, Object]] = {}
        self._version = 1
        self._history: deque[Change] = deque(maxlen=HISTORY_LENGTH)
        self._subscriptions: list[Subscription] = []

    @property
    def version(self) -> int:
        return self._version

    def get(self, table: Table, namespace: str, name: str) -> Object | None:
        return self._tables.get(table, {}).get((namespace, name))

    def scan(self, table: Table, namespace: str | None = None) -> list[Object]:
        """Objects ordered by namespace and name."""
        rows = self._tables.get(table, {})
        return [rows[key] for key in sorted(rows) if namespace is None or key[0] == namespace]

    def everything(self, namespace: str | None = None) -> Iterator[tuple[Table, Object]]:
        for table, rows in list(self._tables.items()):
            for key, obj in list(rows.items()):
                if namespace is None or key[0] == namespace:
                    yield table, obj

    def put(self, table: Table, obj: Object) -> Object:
        """Stores a complete object under the next version, which it gets as resourceVersion."""
        self._version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self._version)}
        obj = {**obj, "metadata": metadata}
        rows = self._tables.setdefault(table, {})
        key = (metadata.get("namespace", ""), metadata["name"])
        before = rows.get(key)
        rows[key] = obj
        self._record(MODIFIED if before is not None else ADDED, table, obj, before)
        return obj

    def remove(self, table: Table, namespace: str, name: str) -> Object:
        """Takes the object away; the one returned carries the version of its deletion."""
        before = self._tables[table].pop((namespace, name))
        self._version += 1
        obj = {
            **before,
            "metadata": {**before["metadata"], "resourceVersion": str(self._version)},
        }
        self._record(DELETED, table, obj, before)
        return obj

    def subscribe(
        self, table: Table | None, since: int | None = None, *, max_lag: int | None = None
    ) -> Subscription:
        """Changes after version `since` (from now on, if None); 410 if the history is too short."""
        subscription = Subscription(self, table, max_lag)
        if since is not None:
            oldest = self._history[0].version if self._history else self._version + 1
            if len(self._history) == HISTORY_LENGTH and since < oldest - 1:
                raise expired(oldest)
            for change in self._history:
                if change.version > since:
                    subscription.offer(change)
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def _record(self, type_: str, table: Table, obj: Object, before: Object | None) -> None:
        change = Change(version=self._version, type=type_, table=table, obj=obj, before=before)
        self._history.append(change)
        for subscription in list(self._subscriptions):
            subscription.offer(change)
            subscription.end_if_late()
