"""Whether a roll-out waits for room that only its own old pods could give."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from octavo_operator.api.quantities import parse_quantity
from octavo_operator.core.observed import Manifest, condition_of, is_live

# Time for a node to be added, where something adds nodes.
PATIENCE_S: Final = 30.0


def waits_for_old_pods(updated: Sequence[Manifest], old: Sequence[Manifest], now: datetime) -> bool:
    """Whether a new pod has had no node for PATIENCE_S, and would fit in an old one's place.

    A pod that asks for more than the old ones do gets no such help: it might find no room then
    either, and nothing would serve.
    """
    return any(
        _has_no_node(pod, now) and any(_fits_in_place_of(pod, other) for other in old)
        for pod in updated
        if is_live(pod)
    )


def _has_no_node(pod: Manifest, now: datetime) -> bool:
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return False
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if since is None:
        return False
    return now - datetime.fromisoformat(since) >= timedelta(seconds=PATIENCE_S)


def _fits_in_place_of(pod: Manifest, other: Manifest) -> bool:
    if not is_live(other):
        return False
    try:
        available, needed = _requests_of(other), _requests_of(pod)
    except ValueError:
        # Others may add containers to a pod; one that cannot be read is not known to fit.
        return False
    return all(amount <= available.get(resource, 0) for resource, amount in needed.items())


def _requests_of(pod: Manifest) -> dict[str, Fraction]:
    """Sum over the containers; raises ValueError for what is no quantity."""
    total: dict[str, Fraction] = {}
    for container in pod["spec"]["containers"]:
        resources: dict[str, Any] = container.get("resources") or {}
        # A limit alone counts as a request of the same amount.
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for resource, amount in asked.items():
            total[resource] = total.get(resource, Fraction(0)) + parse_quantity(str(amount))
    return total
