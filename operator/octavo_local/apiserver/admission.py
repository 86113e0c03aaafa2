"""What happens to an object on its way into the store: structure, defaults, validation."""

import copy
from dataclasses import dataclass, field
from itertools import islice

from .builtin_defaults import fill_builtin_defaults
from .cel import check_rules
from .checking import MAX_CAUSES, check, type_fault
from .errors import Cause, bad_request, conflict, invalid
from .kinds import Kind
from .resources import (
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    Object,
)
from .structure import fill_defaults, pruned, unknown_fields, without_nulls
from .validation import check_builtin, check_change, check_metadata

STRICT = "Strict"
WARN = "Warn"
IGNORE = "Ignore"

_SYSTEM_METADATA = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
_SPEC_OPTIONAL = (NAMESPACES, NODES, LEASES)
# Groups whose objects count the changes of their spec; elsewhere only pods do.
_GROUPS_WITH_GENERATION = {
    "apps",
    "batch",
    "policy",
    "networking.k8s.io",
    "apiextensions.k8s.io",
    "discovery.k8s.io",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a write was asked for; `warnings` collects what the caller is to be told."""

    manager: str = "octavo-local"
    field_validation: str = STRICT
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)


def structured(kind: Kind, obj: Object, options: WriteOptions) -> Object:
    """A copy with known fields only; unknown ones are refused, reported or dropped, as asked."""
    resource = kind.resource
    for name, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        given = obj.get(name, expected)
        if given != expected:
            raise bad_request(
                f"the {name} in the data ({given}) does not match the expected {name} ({expected})"
            )
    metadata = obj.get("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    obj = {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    unknown = sorted(unknown_fields(obj, kind.schema))
    if unknown and options.field_validation == STRICT:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown[:MAX_CAUSES])
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {listed}"
        )
    if unknown and options.field_validation == WARN:
        options.warnings.extend(f'unknown field "{path}"' for path in unknown[:MAX_CAUSES])
    obj = pruned(obj, kind.schema)
    if not resource.custom:
        obj = without_nulls(obj)
        _refuse_wrong_types(kind, obj)
    return obj


def _refuse_wrong_types(kind: Kind, obj: Object) -> None:
    """A built-in object with a wrong type cannot even be decoded, which is a 400 and not a 422."""
    resource = kind.resource
    for cause in check(obj, kind.schema):
        if cause.reason == "FieldValueTypeInvalid":
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: {cause}"
            )


def admit_new(kind: Kind, obj: Object, *, now: str, uid: str) -> Object:
    """A structured object with everything that a new one gets; raises a 422 for a wrong one."""
    resource = kind.resource
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _SYSTEM_METADATA}
    metadata.pop("resourceVersion", None)
    obj = {**obj, "metadata": metadata}
    if kind.has_status and resource is not NODES:
        obj.pop("status", None)
    _refuse_schema_faults(kind, obj)
    _complete(kind, obj)
    metadata.update(uid=uid, creationTimestamp=now)
    if counts_generations(kind):
        metadata["generation"] = 1
    _refuse_faults(kind, None, obj)
    return obj


def admit_change(kind: Kind, old: Object, new: Object, subresource: str | None) -> Object:
    """The structured `new` as the next state of `old`; raises 409 and 422."""
    resource, name = kind.resource, old["metadata"]["name"]
    given, kept = new["metadata"], old["metadata"]
    version = given.get("resourceVersion")
    if version and version != kept["resourceVersion"]:
        raise conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and "
            "try again",
        )
    if given.get("uid", kept["uid"]) != kept["uid"]:
        raise conflict(
            resource,
            name,
            f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: "
            f"{kept['uid']}",
        )
    metadata = {k: v for k, v in given.items() if k not in _SYSTEM_METADATA}
    for system in (*_SYSTEM_METADATA, "name", "namespace", "resourceVersion"):
        if system in kept:
            metadata[system] = kept[system]
    new = {**new, "metadata": metadata}
    if subresource == "status":
        managed = metadata.get("managedFields")
        new = {**old, "metadata": dict(kept), "status": new.get("status", {})}
        if managed is not None:
            new["metadata"]["managedFields"] = managed
    elif kind.has_status and resource is not NODES:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    new = copy.deepcopy(new)
    if not resource.custom and subresource is None:
        _keep_allocated(old, new)
    _refuse_schema_faults(kind, new)
    _complete(kind, new)
    if "generation" in metadata and _spec(new) != _spec(old):
        new["metadata"]["generation"] = kept["generation"] + 1
    _refuse_faults(kind, old, new)
    return new


def _keep_allocated(old: Object, new: Object) -> None:
    """A replaced Service keeps the address that it was given."""
    address = (old.get("spec") or {}).get("clusterIP") if old["kind"] == "Service" else None
    if address and isinstance(new.get("spec"), dict):
        new["spec"].setdefault("clusterIP", address)
        new["spec"].setdefault("clusterIPs", [address])


def counts_generations(kind: Kind) -> bool:
    resource = kind.resource
    return resource.custom or resource.group in _GROUPS_WITH_GENERATION or resource.plural == "pods"


def _spec(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _complete(kind: Kind, obj: Object) -> None:
    if kind.resource.custom:
        fill_defaults(obj, kind.schema)
        return
    fill_builtin_defaults(kind.resource, obj)
    if kind.resource is SECRETS and obj.get("stringData"):
        _encode_string_data(obj)


def _encode_string_data(secret: Object) -> None:
    import base64

    data = secret.setdefault("data", {})
    for key, text in secret.pop("stringData").items():
        data[key] = base64.b64encode(text.encode()).decode()


def _refuse_schema_faults(kind: Kind, obj: Object) -> None:
    """Built-in objects are checked before defaults are filled in, which need a sound structure."""
    if not kind.resource.custom:
        _refuse(kind, obj, list(islice(check(obj, kind.schema), MAX_CAUSES)))
        needs_spec = "spec" in kind.schema["properties"] and kind.resource not in _SPEC_OPTIONAL
        if needs_spec and "spec" not in obj:
            missing = Cause(field="spec", reason="FieldValueRequired", message="Required value")
            _refuse(kind, obj, [missing])


def _refuse_faults(kind: Kind, old: Object | None, new: Object) -> None:
    causes = list(check_metadata(kind.resource, new["metadata"]))
    if kind.resource.custom:
        causes += islice(check(new, kind.schema), MAX_CAUSES)
        if not causes:
            causes += check_rules(new, old, kind.schema)
    else:
        causes += check_builtin(kind, new)
        if old is not None:
            causes += check_change(kind, old, new)
    _refuse(kind, new, causes)


def _refuse(kind: Kind, obj: Object, causes: list[Cause]) -> None:
    if causes:
        raise invalid(kind.resource, obj["metadata"].get("name", ""), causes[:MAX_CAUSES])


def check_is_object(kind: Kind, body: object) -> Object:
    if not isinstance(body, dict):
        raise invalid(kind.resource, "", [type_fault("", body, "object")])
    return body
