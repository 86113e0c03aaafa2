"""The loop that runs every controller over the store, whenever something in it has changed.

Level-triggered: a pass looks at everything there is, whatever the change was. On one node there is
little to look at, a pass that finds nothing to do writes nothing, and no change can be missed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICES,
    Resource,
)
from octavo_local.cluster import Cluster, EventRecorder, next_within
from octavo_local.controllers.deployments import (
    REVISION,
    TEMPLATE_HASH,
    DeploymentPlan,
    decide_deployment,
    revision_of,
    template_hash_of,
)
from octavo_local.controllers.endpoints import make_endpoint_slice, make_endpoints
from octavo_local.controllers.replicasets import decide_replica_set, make_pod
from octavo_local.controllers.scheduler import decide_placement, needs_node
from octavo_local.objects import (
    Object,
    annotations_of,
    controller_uid,
    is_deleting,
    labels_of,
    merge_conditions,
    name_of,
    namespace_of,
)

_WATCHED: Final = (DEPLOYMENTS, REPLICA_SETS, PODS, NODES, SERVICES)
_GATHER_S: Final = 0.01  # changes come in bursts; one pass serves a burst
_RETRY_S: Final = 1.0

logger = logging.getLogger(__name__)


class Controllers:
    """Deployments, ReplicaSets, scheduling and endpoints of one in-memory cluster."""

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._now = now
        self._scheduler_events = EventRecorder(cluster, "default-scheduler", now)
        self._deployment_events = EventRecorder(cluster, "deployment-controller", now)
        self._replica_set_events = EventRecorder(cluster, "replicaset-controller", now)

    async def run(self) -> None:
        """Pass after pass until cancelled."""
        changes = self._cluster.watch(_WATCHED)
        try:
            while True:
                wait_s = self.run_once()
                if await next_within(changes, wait_s) is not None:
                    await asyncio.sleep(_GATHER_S)
                    while await next_within(changes, 0) is not None:
                        continue
        finally:
            changes.close()

    def run_once(self) -> float | None:
        """One pass over everything; returns the seconds until the next is due in any case."""
        waits: list[float | None] = []
        for resource, sync in (
            (DEPLOYMENTS, self._sync_deployment),
            (REPLICA_SETS, self._sync_replica_set),
            (PODS, self._schedule),
            (SERVICES, self._sync_service),
        ):
            for item in self._cluster.list(resource):
                waits.append(self._guarded(resource, item, sync))
        return min((wait for wait in waits if wait is not None), default=None)

    def _guarded(
        self, resource: Resource, item: Object, sync: Callable[[Object], float | None]
    ) -> float | None:
        try:
            return sync(item)
        except ApiError as error:
            logger.warning("%s %s: %s", resource.plural, name_of(item), error.message)
        except Exception:
            logger.exception("%s %s: its controller failed", resource.plural, name_of(item))
        return _RETRY_S

    def _controlled(self, resource: Resource, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        candidates = self._cluster.list(resource, namespace_of(owner))
        return [item for item in candidates if controller_uid(item) == uid]

    def _sync_deployment(self, deployment: Object) -> float | None:
        if is_deleting(deployment):
            return None
        replica_sets = self._controlled(REPLICA_SETS, deployment)
        pods = self._cluster.list(PODS, namespace_of(deployment))
        plan = decide_deployment(
            deployment, replica_sets, _count_old_pods(deployment, replica_sets, pods), self._now()
        )
        if plan.create is not None:
            self._cluster.create(REPLICA_SETS, plan.create)
            self._say_scaled(deployment, plan.current, 0, plan.create["spec"]["replicas"])
        by_name = {name_of(item): item for item in replica_sets}
        for name, size in plan.scale.items():
            self._say_scaled(deployment, name, by_name[name]["spec"].get("replicas", 1), size)
            self._set_replicas(by_name[name], size)
        for name in plan.delete:
            uid = by_name[name]["metadata"]["uid"]
            self._cluster.delete(REPLICA_SETS, namespace_of(deployment), name, uid=uid)
        self._note_revision(deployment, plan, by_name.get(plan.current))
        self._cluster.write_status(DEPLOYMENTS, deployment, plan.status)
        return plan.check_after_s

    def _say_scaled(self, deployment: Object, name: str, old: int, new: int) -> None:
        if new == old:
            return
        direction = "up" if new > old else "down"
        message = f"Scaled {direction} replica set {name} from {old} to {new}"
        self._deployment_events.record(deployment, "Deployment", "ScalingReplicaSet", message)

    def _set_replicas(self, replica_set: Object, size: int) -> None:
        def change(item: Object) -> Object:
            return item | {"spec": item["spec"] | {"replicas": size}}

        key = namespace_of(replica_set), name_of(replica_set)
        self._cluster.modify(REPLICA_SETS, *key, change)

    def _note_revision(
        self, deployment: Object, plan: DeploymentPlan, current: Object | None
    ) -> None:
        def annotate(item: Object) -> Object | None:
            if annotations_of(item).get(REVISION) == str(plan.revision):
                return None
            annotations = {**annotations_of(item), REVISION: str(plan.revision)}
            return item | {"metadata": item["metadata"] | {"annotations": annotations}}

        if current is None and plan.create is None:
            return  # paused before its first roll-out
        namespace = namespace_of(deployment)
        if current is not None and revision_of(current) != plan.revision:
            self._cluster.modify(REPLICA_SETS, namespace, plan.current, annotate)
        self._cluster.modify(DEPLOYMENTS, namespace, name_of(deployment), annotate)

    def _sync_replica_set(self, replica_set: Object) -> float | None:
        if is_deleting(replica_set):
            return None
        plan = decide_replica_set(replica_set, self._controlled(PODS, replica_set), self._now())
        events = self._replica_set_events
        try:
            for _ in range(plan.num_to_create):
                pod = self._cluster.create(PODS, make_pod(replica_set))
                message = f"Created pod: {name_of(pod)}"
                events.record(replica_set, "ReplicaSet", "SuccessfulCreate", message)
        except ApiError as error:
            message = f"Error creating: {error.message}"
            events.record(replica_set, "ReplicaSet", "FailedCreate", message, is_warning=True)
            plan.status["conditions"] = merge_conditions(
                (replica_set.get("status") or {}).get("conditions") or [],
                [
                    {
                        "type": "ReplicaFailure",
                        "status": "True",
                        "reason": "FailedCreate",
                        "message": error.message,
                    }
                ],
                self._now(),
            )
            self._cluster.write_status(REPLICA_SETS, replica_set, plan.status)
            return _RETRY_S
        for name in plan.delete:
            pod_now = self._cluster.get(PODS, namespace_of(replica_set), name)
            if pod_now is not None:
                uid = pod_now["metadata"]["uid"]
                self._cluster.delete(PODS, namespace_of(replica_set), name, uid=uid)
                message = f"Deleted pod: {name}"
                events.record(replica_set, "ReplicaSet", "SuccessfulDelete", message)
        self._cluster.write_status(REPLICA_SETS, replica_set, plan.status)
        return plan.check_after_s

    def _schedule(self, pod: Object) -> float | None:
        if not needs_node(pod):
            return None
        # Read anew for every pod: the one before may have taken the room.
        bound = [other for other in self._cluster.list(PODS) if other["spec"].get("nodeName")]
        placement = decide_placement(pod, self._cluster.list(NODES), bound)
        condition = {"type": "PodScheduled", "status": "True"}
        if placement.node is None:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": placement.message,
            }
        before = pod.get("status") or {}
        others = [item for item in before.get("conditions") or [] if item["type"] != "PodScheduled"]
        conditions = merge_conditions(before.get("conditions") or [], [condition], self._now())
        status = {"phase": "Pending", **before, "conditions": [*conditions, *others]}
        if placement.node is None:
            if self._cluster.write_status(PODS, pod, status):
                self._scheduler_events.record(
                    pod, "Pod", "FailedScheduling", placement.message, is_warning=True
                )
            return None

        def bind(item: Object) -> Object:
            return item | {"spec": item["spec"] | {"nodeName": placement.node}}

        # The status first: the node must not see the pod before it says that it is scheduled.
        self._cluster.write_status(PODS, pod, status)
        self._cluster.modify(PODS, namespace_of(pod), name_of(pod), bind)
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {placement.node}"
        self._scheduler_events.record(pod, "Pod", "Scheduled", message)
        return None

    def _sync_service(self, service: Object) -> float | None:
        if is_deleting(service) or not service["spec"].get("selector"):
            return None
        pods = self._cluster.list(PODS, namespace_of(service))
        self._keep(ENDPOINT_SLICES, make_endpoint_slice(service, pods))
        self._keep(ENDPOINTS, make_endpoints(service, pods))
        return None

    def _keep(self, resource: Resource, wanted: Object) -> None:
        """Create the object, or make its own fields those that are wanted."""
        fields = [field for field in wanted if field not in ("metadata", "apiVersion", "kind")]

        def change(item: Object) -> Object | None:
            same = all(item.get(field) == wanted[field] for field in fields)
            return None if same else item | {field: wanted[field] for field in fields}

        key = namespace_of(wanted), name_of(wanted)
        if self._cluster.get(resource, *key) is None:
            self._cluster.create(resource, wanted)
        else:
            self._cluster.modify(resource, *key, change)


def _count_old_pods(
    deployment: Object, replica_sets: Iterable[Object], pods: Iterable[Object]
) -> int:
    """Pods of ReplicaSets whose template is not the Deployment's any more, finished ones aside."""
    current = template_hash_of(deployment)
    old = {
        item["metadata"]["uid"]
        for item in replica_sets
        if labels_of(item).get(TEMPLATE_HASH) != current
    }
    return sum(
        controller_uid(pod) in old
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in pods
    )
