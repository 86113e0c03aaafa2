"""Do what a plan says: the only place that writes InferenceServices' children and status."""

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_operator.core.conditions import format_time
from octavo_operator.core.observed import Manifest
from octavo_operator.core.plan import Plan, PlannedEvent
from octavo_operator.shell.cluster import Cluster, ClusterError
from octavo_wire.names import FIELD_MANAGER, KIND

logger = logging.getLogger(__name__)


async def apply_children(cluster: Cluster, plan: Plan) -> None:
    """Apply and delete in order; raises the first ClusterError."""
    for manifest in plan.apply:
        await cluster.apply(manifest)
        logger.info("applied %s", _label(manifest))
    for child in plan.delete:
        await cluster.delete(child)
        logger.info("deleted %s, which is wanted no more", _label(child))


async def apply_status(cluster: Cluster, service: Manifest, plan: Plan, now: datetime) -> bool:
    """Write the status if it says something new, then the events; returns whether it wrote."""
    patch = status_patch(service.get("status") or {}, plan.status)
    meta = service["metadata"]
    if patch:
        await cluster.patch_status(KIND, meta["namespace"], meta["name"], patch)
    for event in plan.events:
        logger.info("%s/%s: %s: %s", meta["namespace"], meta["name"], event.reason, event.message)
        await _post_event(cluster, service, event, now)
    return bool(patch)


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch from one status to the other; empty where nothing has changed."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **{key: None for key in before if key not in after}}


async def _post_event(
    cluster: Cluster, service: Manifest, event: PlannedEvent, now: datetime
) -> None:
    meta = service["metadata"]
    # The same news in the same second is the same event, should it be posted twice.
    identity = f"{meta['uid']} {event.reason} {event.message} {format_time(now)}"
    suffix = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    try:
        await cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{meta['name']}.{suffix}", "namespace": meta["namespace"]},
                "involvedObject": {
                    "apiVersion": service["apiVersion"],
                    "kind": service["kind"],
                    "name": meta["name"],
                    "namespace": meta["namespace"],
                    "uid": meta["uid"],
                    "resourceVersion": meta["resourceVersion"],
                },
                "type": event.type,
                "reason": event.reason,
                # The API's own limit on an event's message.
                "message": event.message[:1024],
                "firstTimestamp": format_time(now),
                "lastTimestamp": format_time(now),
                "count": 1,
                "source": {"component": FIELD_MANAGER},
            }
        )
    except ClusterError as error:
        # News are worth no retry: the conditions say the same and stay.
        logger.warning("no event %s for %s: %s", event.reason, meta["name"], error)


def _label(obj: Manifest) -> str:
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
