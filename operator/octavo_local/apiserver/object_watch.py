"""Changes of objects as an async iterator, for controllers in this process."""

import copy
from collections.abc import AsyncIterator
from types import TracebackType

from .kinds import Kinds
from .resources import Object, Resource
from .storage import ADDED, Storage, Subscription


class Watch:
    """`async for type, resource, object in store.watch(PODS)`; close it, or use it in a `with`."""

    def __init__(
        self, kinds: Kinds, storage: Storage, resource: Resource | None, *, replay: bool
    ) -> None:
        self._kinds = kinds
        self._resource = resource
        if resource is not None:
            existing = [(resource.table, obj) for obj in storage.scan(resource.table)]
        else:
            existing = list(storage.everything())
        self._existing = iter(existing if replay else [])
        self._changes: Subscription = storage.subscribe(resource.table if resource else None)

    def close(self) -> None:
        self._changes.close()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[tuple[str, Resource, Object]]:
        return self

    async def __anext__(self) -> tuple[str, Resource, Object]:
        for table, obj in self._existing:
            return ADDED, self._resource_of(table), copy.deepcopy(obj)
        change = await self._changes.next()
        return change.type, self._resource_of(change.table), copy.deepcopy(change.obj)

    def _resource_of(self, table: tuple[str, str]) -> Resource:
        if self._resource is not None:
            return self._resource
        kind = self._kinds.stored_in(table)
        assert kind is not None, table
        return kind.resource
