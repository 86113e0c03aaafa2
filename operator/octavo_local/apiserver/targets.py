"""What a request's path names: a kind, maybe a namespace, an object, a subresource."""

from dataclasses import dataclass

from .errors import no_such_path
from .kinds import Kind, Kinds
from .resources import EVENTS, EVENTS_K8S_IO, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`namespace` is None for cluster-wide objects and for lists over all namespaces."""

    kind: Kind
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def stored(self) -> Resource:
        """The resource under which the objects are kept."""
        return EVENTS if self.kind.resource is EVENTS_K8S_IO else self.kind.resource


def parse_target(kinds: Kinds, path: str) -> Target:
    """Reads `/api/v1/namespaces/x/pods/y/status` and the like; raises a 404 for anything else."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) >= 3:
        within = kinds.find(group, version, rest[2])
        # /namespaces/x/status is the subresource, /namespaces/x/pods a list of pods.
        if within is not None and within.resource.namespaced:
            namespace, rest = rest[1], rest[2:]
    kind = kinds.find(group, version, rest[0])
    if kind is None or len(rest) > 3:
        raise no_such_path()
    resource = kind.resource
    name = rest[1] if len(rest) > 1 else None
    subresource = rest[2] if len(rest) > 2 else None
    if subresource is not None and subresource not in resource.subresources:
        raise no_such_path()
    if name is not None and resource.namespaced and namespace is None:
        raise no_such_path()
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
