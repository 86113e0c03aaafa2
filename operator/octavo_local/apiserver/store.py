"""The API as Python calls: what HTTP is made of, and the writes of `octavo_local.cluster`.

    store.get(PODS, "default", "engine-0")                     a deep copy, or a 404
    store.list(PODS, "default", label_selector="app=x")        deep copies
    store.create(PODS, "default", {...})
    store.update(PODS, "default", "engine-0", obj)             409 if obj's resourceVersion is old
    store.delete(PODS, "default", "engine-0", grace_period_s=0)

Who only reads or watches, and changes nothing that it is given, asks `store.storage`.

Everything happens in one event loop and nothing here waits, so a call is atomic. Errors are
`ApiError`s.
"""

import copy
import random
import uuid
from datetime import timedelta

from octavo_local.objects import random_suffix

from . import crds
from .admission import (
    WriteOptions,
    admit_change,
    admit_new,
    structured,
)
from .clock import Clock, timestamp, wall_clock
from .deletion import BACKGROUND, Deleter
from .errors import (
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from .kinds import Kind, Kinds
from .managers import APPLY, UPDATE, Manager, record_update
from .resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NODES,
    SERVICE_ACCOUNTS,
    SERVICES,
    UNATTENDED,
    Object,
    Resource,
)
from .selectors import parse_label_selector
from .serverside_apply import apply
from .service_addresses import assign_cluster_ip
from .storage import Storage

_EVENT_LIFETIME = timedelta(hours=1)
FIRST_NAMESPACES = ("default", "kube-system")


class Store:
    """An in-memory Kubernetes API without HTTP."""

    def __init__(self, *, clock: Clock = wall_clock, rng: random.Random | None = None) -> None:
        self.kinds = Kinds()
        self.storage = Storage()
        self._clock = clock
        # Names need to be unlike one another, not secret.
        self._rng = rng or random.Random()  # noqa: S311 - names
        self._deleter = Deleter(self.storage, self.kinds, clock)
        for name in FIRST_NAMESPACES:
            self.create(NAMESPACES, None, {"metadata": {"name": name}})

    # --- plain calls ----------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return copy.deepcopy(self.peek(resource, namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
    ) -> "list[Object]":
        fits = parse_label_selector(label_selector or "")
        return [
            copy.deepcopy(obj)
            for obj in self.storage.scan(resource.table, namespace)
            if fits(obj["metadata"].get("labels") or {})
        ]

    def create(
        self,
        resource: Resource,
        namespace: str | None,
        obj: Object,
        options: WriteOptions | None = None,
    ) -> Object:
        options = options or WriteOptions()
        kind = self.kinds.of(resource)
        obj = structured(kind, obj, options)
        manager = self._manager(kind, options, UPDATE)
        return self._create(kind, namespace, obj, options, manager)

    def update(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        obj: Object,
        subresource: str | None = None,
        options: WriteOptions | None = None,
    ) -> Object:
        """Replaces the object (or its status alone); without a resourceVersion it always wins."""
        options = options or WriteOptions()
        kind = self.kinds.of(resource)
        old = self.peek(resource, namespace, name)
        obj = structured(kind, obj, options)
        _check_identity(obj["metadata"], namespace, name)
        new = admit_change(kind, old, obj, subresource)
        manager = self._manager(kind, options, UPDATE, subresource)
        if _without_managers(new) != _without_managers(old):
            if "managedFields" not in obj["metadata"]:
                new["metadata"]["managedFields"] = old["metadata"].get("managedFields", [])
            record_update(old, new, kind.schema, manager, self._now())
        elif "managedFields" not in obj["metadata"]:
            return copy.deepcopy(old)
        return self._replace(kind, old, new, options)

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        grace_period_s: int | None = None,
        propagation: str = BACKGROUND,
        *,
        uid: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """The object as it was last; it may live on, marked, until nothing holds it."""
        obj = self.peek(resource, namespace, name)
        if uid is not None and uid != obj["metadata"]["uid"]:
            raise conflict(
                resource,
                name,
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                f"{obj['metadata']['uid']}",
            )
        if dry_run:
            return copy.deepcopy(obj)
        kind = self.kinds.of(resource)
        gone = self._deleter.delete(
            kind, obj, grace_period_s=grace_period_s, propagation=propagation
        )
        return copy.deepcopy(gone)

    # --- what HTTP needs besides ----------------------------------------------------------------

    def peek(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """The stored object itself, which the caller must not change."""
        found = self.storage.get(resource.table, namespace or "", name)
        if found is None:
            raise not_found(resource, name)
        return found

    def exists(self, resource: Resource, namespace: str | None, name: str) -> bool:
        return self.storage.get(resource.table, namespace or "", name) is not None

    def apply(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        wanted: Object,
        options: WriteOptions,
        *,
        force: bool = False,
        subresource: str | None = None,
    ) -> tuple[Object, bool]:
        """Server-side apply; returns the object and whether it is new."""
        kind = self.kinds.of(resource)
        wanted = structured(kind, wanted, options)
        if wanted["metadata"].pop("managedFields", None):
            raise bad_request("metadata.managedFields must be nil")
        wanted["metadata"].setdefault("name", name)
        _check_identity(wanted["metadata"], namespace, name)
        manager = self._manager(kind, options, APPLY, subresource)
        live = self.storage.get(resource.table, namespace or "", name)
        if live is None:
            if subresource is not None:
                raise not_found(resource, name)
            if wanted["metadata"].get("resourceVersion"):
                raise conflict(resource, name, "the object does not exist, but has a version")
            if kind.has_status and resource is not NODES:
                wanted.pop("status", None)
            return self._create(kind, namespace, wanted, options, manager), True
        if subresource == "status":
            wanted = {k: v for k, v in wanted.items() if k != "spec"}
            wanted["metadata"] = {"name": name}
        elif kind.has_status:
            wanted.pop("status", None)
        version = wanted["metadata"].pop("resourceVersion", None)
        result = apply(live, wanted, kind.schema, manager, force=force, now=self._now())
        if version is not None:
            result["metadata"]["resourceVersion"] = version
        new = admit_change(kind, live, result, subresource)
        return self._replace(kind, live, new, options), False

    # --- inside ---------------------------------------------------------------------------------

    def _now(self) -> str:
        return timestamp(self._clock())

    def _manager(
        self, kind: Kind, options: WriteOptions, operation: str, subresource: str | None = None
    ) -> Manager:
        return Manager(
            name=options.manager,
            operation=operation,
            api_version=kind.resource.api_version,
            subresource=subresource or "",
        )

    def _create(
        self,
        kind: Kind,
        namespace: str | None,
        obj: Object,
        options: WriteOptions,
        manager: Manager,
    ) -> Object:
        resource = kind.resource
        if resource in UNATTENDED:
            options.warnings.append(
                f"local mode keeps {resource.plural}, but nothing here acts on them"
            )
        self._place(resource, namespace, obj["metadata"])
        name = obj["metadata"]["name"]
        if self.exists(resource, namespace, name):
            raise already_exists(resource, name)
        wanted = copy.deepcopy(obj)  # admission adds defaults, which nobody applied
        obj = admit_new(kind, obj, now=self._now(), uid=self._new_uid())
        if resource is SERVICES:
            taken = {one["spec"].get("clusterIP") for one in self.storage.scan(resource.table)}
            assign_cluster_ip(obj, taken)
        obj["metadata"].pop("managedFields", None)
        if manager.operation == APPLY:
            empty: Object = {"metadata": {}}
            applied = apply(empty, wanted, kind.schema, manager, force=False, now=self._now())
            owned = applied["metadata"].get("managedFields")  # none, of an object that is a name
            if owned:
                obj["metadata"]["managedFields"] = owned
        else:
            record_update(None, obj, kind.schema, manager, self._now())
        if options.dry_run:
            return obj
        stored = self.storage.put(resource.table, obj)
        self._after_write(kind, stored)
        self._deleter.collect_if_orphaned(kind, stored)
        return copy.deepcopy(stored)

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _place(self, resource: Resource, namespace: str | None, metadata: Object) -> None:
        """Settles name and namespace of a new object, in place."""
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                required = Cause(
                    field="metadata.name",
                    reason="FieldValueRequired",
                    message="Required value: name or generateName is required",
                )
                raise invalid(resource, "", [required])
            metadata["name"] = metadata["generateName"] + random_suffix(choose=self._rng.choice)
        if not resource.namespaced:
            metadata.pop("namespace", None)
            return
        assert namespace is not None, f"{resource.plural} live in namespaces"
        _check_identity(metadata, namespace, metadata["name"])
        metadata["namespace"] = namespace
        home = self.storage.get(NAMESPACES.table, "", namespace)
        if home is None:
            raise not_found(NAMESPACES, namespace)
        if home.get("status", {}).get("phase") == "Terminating":
            raise forbidden(
                resource,
                metadata["name"],
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated",
            )

    def _replace(self, kind: Kind, old: Object, new: Object, options: WriteOptions) -> Object:
        if options.dry_run or new == old:
            return copy.deepcopy(new)
        stored = self.storage.put(kind.resource.table, new)
        self._after_write(kind, stored)
        if old["metadata"].get("ownerReferences") != new["metadata"].get("ownerReferences"):
            self._deleter.collect_if_orphaned(kind, stored)
        return copy.deepcopy(self._deleter.settle(kind, stored))

    def _after_write(self, kind: Kind, stored: Object) -> None:
        """What the control plane does at once: serve a definition's kinds, furnish a namespace."""
        name = stored["metadata"]["name"]
        if kind.resource is EVENTS:
            self._forget_old_events()
        if kind.resource is CUSTOM_RESOURCE_DEFINITIONS:
            served, storage_kind = crds.kinds_of(stored)
            self.kinds.install(served, stored=storage_kind)
            status = crds.established(stored, self._now())
            if stored.get("status") != status:
                self.storage.put(kind.resource.table, {**stored, "status": status})
        active = kind.resource is NAMESPACES and stored["status"]["phase"] == "Active"
        if active and not self.exists(SERVICE_ACCOUNTS, name, "default"):
            self.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})

    def _forget_old_events(self) -> None:
        """Events last an hour, as in a cluster; what looks for old ones is the next one."""
        oldest = timestamp(self._clock() - _EVENT_LIFETIME)
        for event in self.storage.scan(EVENTS.table):
            metadata = event["metadata"]
            # Timestamps of one form sort as text.
            if (event.get("lastTimestamp") or metadata["creationTimestamp"]) < oldest:
                self.storage.remove(EVENTS.table, metadata["namespace"], metadata["name"])


def _check_identity(metadata: Object, namespace: str | None, name: str) -> None:
    for field, expected in (("name", name), ("namespace", namespace)):
        given = metadata.get(field, expected)
        if given != expected:
            raise bad_request(
                f"the {field} of the object ({given}) does not match the {field} of the request "
                f"({expected})"
            )


def _without_managers(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    return {**obj, "metadata": metadata}
