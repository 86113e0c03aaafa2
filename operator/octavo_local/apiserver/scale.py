"""The `/scale` subresource: one number to read and to write, whatever the kind."""

from .errors import Cause, bad_request, invalid
from .jsonpath import set_value_at, value_at
from .kinds import Kind
from .resources import Object
from .selectors import selector_text


def read_scale(kind: Kind, obj: Object) -> Object:
    assert kind.scale is not None
    paths = kind.scale
    if paths.selector is not None:
        selector = value_at(obj, paths.selector) or ""
    elif kind.resource.custom:
        selector = ""
    else:
        selector = selector_text(obj["spec"].get("selector") or {})
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": value_at(obj, paths.spec_replicas) or 0},
        "status": {
            "replicas": value_at(obj, paths.status_replicas) or 0,
            **({"selector": selector} if selector else {}),
        },
    }


def write_scale(kind: Kind, obj: Object, scale: Object) -> Object:
    """`obj` (a copy of the caller's) with the replicas of a Scale; raises 400 and 422."""
    assert kind.scale is not None
    spec = scale.get("spec") or {}
    if not isinstance(spec, dict):
        raise bad_request("spec of a Scale must be an object")
    replicas = spec.get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request("spec.replicas of a Scale must be an integer")
    if replicas < 0:
        cause = Cause(
            field="spec.replicas",
            message=f"Invalid value: {replicas}: must be greater than or equal to 0",
        )
        raise invalid(kind.resource, obj["metadata"]["name"], [cause])
    set_value_at(obj, kind.scale.spec_replicas, replicas)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        obj["metadata"]["resourceVersion"] = version
    return obj
