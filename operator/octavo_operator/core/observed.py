"""What was seen of one InferenceService and its children in one look at the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Objects as the API returned them; the service is never one that is being deleted.

    `deployments` and `services` hold the children by label, and whatever else bears a name that a
    child would have.
    """

    service: Manifest
    deployments: Sequence[Manifest] = ()
    services: Sequence[Manifest] = ()
    pods: Sequence[Manifest] = ()

    def children(self) -> Sequence[Manifest]:
        return [*self.deployments, *self.services]

    def find(self, kind: str, name: str) -> Manifest | None:
        found = {"Deployment": self.deployments, "Service": self.services}[kind]
        return next((item for item in found if item["metadata"]["name"] == name), None)


def is_owned_by(obj: Manifest, uid: str) -> bool:
    """Whether the owner `uid` controls `obj`."""
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def has_condition(obj: Manifest, kind: str, status: str = "True") -> bool:
    return condition_of(obj, kind).get("status") == status


def condition_of(obj: Manifest, kind: str) -> Manifest:
    """The condition of that type, or an empty mapping."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def is_live(pod: Manifest) -> bool:
    """Whether a pod is neither being deleted nor finished."""
    return not pod["metadata"].get("deletionTimestamp") and not is_finished(pod)


def is_finished(pod: Manifest) -> bool:
    """Whether a pod holds nothing any more; an evicted one stays like that until it is deleted."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Manifest) -> bool:
    return is_live(pod) and has_condition(pod, "Ready")
