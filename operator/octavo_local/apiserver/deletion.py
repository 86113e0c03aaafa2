"""How objects go: grace periods, finalizers, and what goes with them.

Invariant: an object whose `deletionTimestamp` is set is removed as soon as nothing holds it: no
finalizer, no grace period of a pod on a node, no content of a namespace, no instance of a
definition.
"""

from datetime import timedelta

from .admission import counts_generations
from .clock import Clock, timestamp
from .errors import Cause, forbidden, invalid
from .kinds import Kind, Kinds
from .resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PODS, Object
from .storage import Storage, Table

BACKGROUND = "Background"
FOREGROUND = "Foreground"
ORPHAN = "Orphan"
_POLICIES = (BACKGROUND, FOREGROUND, ORPHAN)

_FOREGROUND_FINALIZER = "foregroundDeletion"
_CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_LASTING_NAMESPACES = ("default", "kube-system", "kube-public")


class Deleter:
    """Deletes objects and everything that must follow, at once and in one thread."""

    def __init__(self, storage: Storage, kinds: Kinds, clock: Clock) -> None:
        self._storage = storage
        self._kinds = kinds
        self._clock = clock

    def delete(
        self, kind: Kind, obj: Object, *, grace_period_s: int | None, propagation: str
    ) -> Object:
        """Removes the object or marks it; returns its last state."""
        if propagation not in _POLICIES:
            cause = Cause(
                field="propagationPolicy",
                message=f'Unsupported value: "{propagation}": supported values: '
                + ", ".join(f'"{policy}"' for policy in _POLICIES),
            )
            raise invalid(kind.resource, obj["metadata"]["name"], [cause])
        if kind.resource is NAMESPACES and obj["metadata"]["name"] in _LASTING_NAMESPACES:
            raise forbidden(
                kind.resource, obj["metadata"]["name"], "this namespace may not be deleted"
            )
        if propagation == ORPHAN:
            self._release_dependents(obj)
        finalizers = list(obj["metadata"].get("finalizers") or [])
        if propagation == FOREGROUND and self._dependents(obj):
            finalizers.append(_FOREGROUND_FINALIZER)
        if kind.resource is CUSTOM_RESOURCE_DEFINITIONS and self._storage.scan(_instances(obj)):
            finalizers.append(_CRD_FINALIZER)
        grace_s = self._grace_period_s(kind, obj, grace_period_s)
        if not finalizers and grace_s == 0 and kind.resource is not NAMESPACES:
            return self._remove(kind, obj)
        obj = self._mark(kind, obj, list(dict.fromkeys(finalizers)), grace_s)
        self._start_contents(kind, obj, propagation)
        return self.settle(kind, obj)

    def settle(self, kind: Kind, obj: Object) -> Object:
        """Removes a marked object if nothing holds it any more; call after every change of it."""
        metadata = obj["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return obj
        if kind.resource is PODS and metadata.get("deletionGracePeriodSeconds", 0) > 0:
            return obj
        if kind.resource is NAMESPACES and any(self._storage.everything(metadata["name"])):
            return obj
        if self._storage.get(kind.resource.table, metadata.get("namespace", ""), metadata["name"]):
            return self._remove(kind, obj)
        return obj

    def collect_if_orphaned(self, kind: Kind, obj: Object) -> None:
        """Deletes an object all of whose owners are gone already (it was written too late)."""
        owners = obj["metadata"].get("ownerReferences") or []
        if owners and not any(self._uid_exists(owner["uid"]) for owner in owners):
            self.delete(kind, obj, grace_period_s=None, propagation=BACKGROUND)

    def _grace_period_s(self, kind: Kind, obj: Object, asked_s: int | None) -> int:
        if kind.resource is not PODS:
            return 0
        spec, phase = obj["spec"], (obj.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0  # no kubelet has anything to stop
        grace_s = asked_s if asked_s is not None else int(spec["terminationGracePeriodSeconds"])
        already_s = obj["metadata"].get("deletionGracePeriodSeconds")
        return max(0, grace_s if already_s is None else min(grace_s, already_s))

    def _mark(self, kind: Kind, obj: Object, finalizers: list[str], grace_s: int) -> Object:
        metadata = {**obj["metadata"]}
        if finalizers:
            metadata["finalizers"] = finalizers
        fresh = "deletionTimestamp" not in metadata
        shorter = metadata.get("deletionGracePeriodSeconds") != grace_s
        if fresh or (kind.resource is PODS and shorter):
            metadata["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace_s))
            metadata["deletionGracePeriodSeconds"] = grace_s
        if fresh and counts_generations(kind):
            metadata["generation"] = metadata.get("generation", 1) + 1
        marked = {**obj, "metadata": metadata}
        if kind.resource is NAMESPACES:
            marked["status"] = {**marked.get("status", {}), "phase": "Terminating"}
        if marked == obj:
            return obj
        return self._storage.put(kind.resource.table, marked)

    def _start_contents(self, kind: Kind, obj: Object, propagation: str) -> None:
        """Begins to delete what a marked object waits for."""
        if kind.resource is NAMESPACES:
            for table, content in self._storage.everything(obj["metadata"]["name"]):
                self._delete_dependent(table, content, BACKGROUND)
        if kind.resource is CUSTOM_RESOURCE_DEFINITIONS:
            for instance in self._storage.scan(_instances(obj)):
                self._delete_dependent(_instances(obj), instance, BACKGROUND)
        if propagation == FOREGROUND:
            for table, dependent in self._dependents(obj):
                self._delete_dependent(table, dependent, FOREGROUND)

    def _delete_dependent(self, table: Table, obj: Object, propagation: str) -> None:
        metadata = obj["metadata"]
        current = self._storage.get(table, metadata.get("namespace", ""), metadata["name"])
        kind = self._kinds.stored_in(table)
        # A cascade may have taken it away already, or given the name to another object.
        if (
            kind is not None
            and current is not None
            and current["metadata"]["uid"] == metadata["uid"]
        ):
            self.delete(kind, current, grace_period_s=None, propagation=propagation)

    def _remove(self, kind: Kind, obj: Object) -> Object:
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "")
        gone = self._storage.remove(kind.resource.table, namespace, metadata["name"])
        if kind.resource is CUSTOM_RESOURCE_DEFINITIONS:
            self._kinds.uninstall(_instances(obj))
        self._follow(kind, gone)
        return gone

    def _follow(self, kind: Kind, gone: Object) -> None:
        """Whatever waited for this removal, or depended on what is gone."""
        for table, dependent in self._dependents(gone):
            owners = dependent["metadata"]["ownerReferences"]
            if not any(self._uid_exists(owner["uid"]) for owner in owners):
                self._delete_dependent(table, dependent, BACKGROUND)
        for owner in gone["metadata"].get("ownerReferences") or []:
            self._release_owner(owner["uid"])
        namespace = gone["metadata"].get("namespace")
        if namespace:
            self._settle_named(NAMESPACES.table, namespace)
        if kind.resource.custom:
            self._finish_definition(kind)

    def _release_owner(self, uid: str) -> None:
        """Takes the foreground finalizer off an owner that nothing blocks any more."""
        for table, owner in self._storage.everything():
            metadata = owner["metadata"]
            if metadata["uid"] != uid:
                continue
            finalizers = metadata.get("finalizers") or []
            if _FOREGROUND_FINALIZER in finalizers and not self._blockers(owner):
                self._drop_finalizer(table, owner, _FOREGROUND_FINALIZER)

    def _blockers(self, owner: Object) -> list[tuple[Table, Object]]:
        uid = owner["metadata"]["uid"]
        return [
            (table, dependent)
            for table, dependent in self._dependents(owner)
            if any(
                one["uid"] == uid and one.get("blockOwnerDeletion")
                for one in dependent["metadata"]["ownerReferences"]
            )
        ]

    def _finish_definition(self, kind: Kind) -> None:
        name = kind.resource.qualified
        crd = self._storage.get(CUSTOM_RESOURCE_DEFINITIONS.table, "", name)
        if crd is None or self._storage.scan(kind.resource.table):
            return
        if _CRD_FINALIZER in (crd["metadata"].get("finalizers") or []):
            self._drop_finalizer(CUSTOM_RESOURCE_DEFINITIONS.table, crd, _CRD_FINALIZER)

    def _drop_finalizer(self, table: Table, obj: Object, finalizer: str) -> None:
        left = [one for one in obj["metadata"]["finalizers"] if one != finalizer]
        metadata = {k: v for k, v in obj["metadata"].items() if k != "finalizers"}
        if left:
            metadata["finalizers"] = left
        kind = self._kinds.stored_in(table)
        assert kind is not None
        self.settle(kind, self._storage.put(table, {**obj, "metadata": metadata}))

    def _settle_named(self, table: Table, name: str) -> None:
        obj, kind = self._storage.get(table, "", name), self._kinds.stored_in(table)
        if obj is not None and kind is not None:
            self.settle(kind, obj)

    def _release_dependents(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for table, dependent in self._dependents(owner):
            left = [one for one in dependent["metadata"]["ownerReferences"] if one["uid"] != uid]
            metadata = {k: v for k, v in dependent["metadata"].items() if k != "ownerReferences"}
            if left:
                metadata["ownerReferences"] = left
            self._storage.put(table, {**dependent, "metadata": metadata})

    def _dependents(self, owner: Object) -> list[tuple[Table, Object]]:
        uid = owner["metadata"]["uid"]
        return [
            (table, obj)
            for table, obj in self._storage.everything()
            if any(one["uid"] == uid for one in obj["metadata"].get("ownerReferences") or [])
        ]

    def _uid_exists(self, uid: str) -> bool:
        return any(obj["metadata"]["uid"] == uid for _, obj in self._storage.everything())


def _instances(crd: Object) -> Table:
    return (crd["spec"]["group"], crd["spec"]["names"]["plural"])
