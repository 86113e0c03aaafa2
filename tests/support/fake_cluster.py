"""A cluster in a dict, with the methods of octavo_operator.shell.cluster.Cluster that tests use.

Objects are kept as given (no schema, no defaults); a write is logged in `writes`, and a function in
`faults`, called with the operation and the kind before it happens, may raise in its stead. `used`
collects what RBAC must grant for all that.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from octavo_operator.shell.cluster import Cluster, ClusterError, WatchEvent, rights_for
from octavo_operator.shell.permissions import Right


def _matches(obj: Mapping[str, Any], selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return all(
        labels.get(key) == value
        for key, _, value in (term.partition("=") for term in selector.split(","))
    )


class FakeCluster(Cluster):
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.faults: list[Callable[[str, str], None]] = []
        self.used: set[Right] = set()
        self.watches: list[Sequence[WatchEvent]] = []
        self._version = 0

    def put(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object, as a test's own act."""
        meta = obj["metadata"]
        self._version += 1
        stored = deepcopy(dict(obj))
        stored["metadata"] = {
            "uid": f"uid-{self._version}",
            **stored["metadata"],
            "resourceVersion": str(self._version),
        }
        self.objects[obj["kind"], meta["namespace"], meta["name"]] = stored
        return deepcopy(stored)

    def children(self) -> list[tuple[str, str]]:
        return sorted(
            (kind, name) for kind, _, name in self.objects if kind in ("Deployment", "Service")
        )

    def _enter(self, operation: str, kind: str, name: str) -> None:
        self.used |= rights_for(operation, kind)
        for fault in self.faults:
            fault(operation, kind)
        if operation not in ("get", "list", "watch"):
            self.writes.append((operation, kind, name))

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._enter("get", kind, name)
        return deepcopy(self.objects.get((kind, namespace, name)))

    async def list(
        self, kind: str, namespace: str | None, selector: str
    ) -> tuple[list[dict[str, Any]], str]:
        self._enter("list", kind, "")
        found = [
            deepcopy(obj)
            for (its_kind, its_namespace, _), obj in self.objects.items()
            if its_kind == kind and namespace in (None, its_namespace) and _matches(obj, selector)
        ]
        return found, str(self._version)

    async def watch(
        self, kind: str, namespace: str | None, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """The next of `watches`, or one that ends at once."""
        self._enter("watch", kind, "")
        for event in self.watches.pop(0) if self.watches else ():
            yield event

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        self._enter("apply", manifest["kind"], manifest["metadata"]["name"])
        return self.put(manifest)

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Mapping[str, Any]
    ) -> None:
        self._enter("patch_status", kind, name)
        if (kind, namespace, name) not in self.objects:
            raise ClusterError("not found", status=404)
        obj = self.objects[kind, namespace, name]
        merged = {**obj.get("status", {}), **status}
        self.put({**obj, "status": {k: v for k, v in merged.items() if v is not None}})

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        kind, meta = manifest["kind"], manifest["metadata"]
        self._enter("create", kind, meta["name"])
        if (kind, meta["namespace"], meta["name"]) in self.objects:
            raise ClusterError("there already", status=409)
        return self.put(manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        kind, meta = manifest["kind"], manifest["metadata"]
        self._enter("replace", kind, meta["name"])
        live = self.objects.get((kind, meta["namespace"], meta["name"]))
        if live is None:
            raise ClusterError("not found", status=404)
        if live["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ClusterError("it has changed", status=409)
        return self.put(manifest)

    async def delete(self, obj: Mapping[str, Any]) -> None:
        self._enter("delete", obj["kind"], obj["metadata"]["name"])
        self.objects.pop((obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]), None)
