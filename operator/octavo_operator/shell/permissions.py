"""What the operator may ask of the API: the one table that the chart's RBAC is tested against.

`Cluster` looks its calls up here, so one that is not listed fails in every test; and a test finds
each entry used.
"""

from dataclasses import dataclass
from typing import Final

from octavo_wire.names import API_GROUP, PLURAL

Right = tuple[str, str, str]  # group, resource, verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A rule as RBAC has it; `resource` may name a subresource ("x/status")."""

    group: str
    resource: str
    verbs: tuple[str, ...]


# In every namespace that the operator serves.
SERVED_NAMESPACES: Final = (
    Permission(group=API_GROUP, resource=PLURAL, verbs=("get", "list", "watch")),
    Permission(group=API_GROUP, resource=f"{PLURAL}/status", verbs=("patch",)),
    Permission(
        group="apps",
        resource="deployments",
        verbs=("get", "list", "watch", "create", "patch", "delete"),
    ),
    Permission(
        group="", resource="services", verbs=("get", "list", "watch", "create", "patch", "delete")
    ),
    Permission(group="", resource="pods", verbs=("list", "watch")),
    Permission(group="", resource="events", verbs=("create",)),
)

# In the operator's own namespace: one Lease says which operator acts.
OWN_NAMESPACE: Final = (
    Permission(group="coordination.k8s.io", resource="leases", verbs=("get", "create", "update")),
)

RIGHTS: Final[frozenset[Right]] = frozenset(
    (entry.group, entry.resource, verb)
    for entry in (*SERVED_NAMESPACES, *OWN_NAMESPACE)
    for verb in entry.verbs
)
