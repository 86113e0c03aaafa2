"""Read one InferenceService and what belongs to it."""

import asyncio

from octavo_operator.core.names import (
    OWNED_SELECTOR,
    deployment_name,
    format_selector,
    selector_labels,
    service_names,
)
from octavo_operator.core.observed import Manifest, Observed
from octavo_operator.shell.cluster import Cluster
from octavo_wire.names import KIND, LABEL_SERVICE


async def gather(cluster: Cluster, namespace: str, name: str) -> Observed | None:
    """What is there now; None when the service is gone, or on its way out."""
    owned = f"{OWNED_SELECTOR},{LABEL_SERVICE}={name}"
    service, deployments, services, pods = await asyncio.gather(
        cluster.get(KIND, namespace, name),
        cluster.list("Deployment", namespace, owned),
        cluster.list("Service", namespace, owned),
        cluster.list("Pod", namespace, format_selector(selector_labels(name))),
    )
    if service is None or service["metadata"].get("deletionTimestamp"):
        return None
    return Observed(
        service=service,
        deployments=await _with_names(
            cluster, "Deployment", namespace, deployments[0], (deployment_name(name),)
        ),
        services=await _with_names(cluster, "Service", namespace, services[0], service_names(name)),
        pods=pods[0],
    )


async def _with_names(
    cluster: Cluster,
    kind: str,
    namespace: str,
    labelled: list[dict[str, object]],
    names: tuple[str, ...],
) -> list[Manifest]:
    """The labelled objects, and those without our label that bear a name which we would give."""
    found: list[Manifest] = list(labelled)
    present = {item["metadata"]["name"] for item in found}
    for name in names:
        if name not in present:
            obj = await cluster.get(kind, namespace, name)
            if obj is not None:
                found.append(obj)
    return found
