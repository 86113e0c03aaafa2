"""The kinds that the server knows by itself; custom resource definitions add to them at runtime."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of one group and version, as discovery describes it."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    custom: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`deployments.apps`, as error messages of Kubernetes name a resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def table(self) -> tuple[str, str]:
        """Where the objects are kept; versions of one resource share it."""
        return (self.group, self.plural)


def _resource(
    api_version: str,
    plural: str,
    kind: str,
    *,
    short: Iterable[str] = (),
    subresources: Iterable[str] = (),
    namespaced: bool = True,
    categories: Iterable[str] = (),
    verbs: tuple[str, ...] = ALL_VERBS,
) -> Resource:
    group, _, version = api_version.rpartition("/")
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        short_names=tuple(short),
        namespaced=namespaced,
        subresources=frozenset(subresources),
        categories=tuple(categories),
        verbs=verbs,
    )


_STATUS = ("status",)
_STATUS_AND_SCALE = ("status", "scale")
_ALL = ("all",)

NAMESPACES = _resource(
    "v1", "namespaces", "Namespace", short=["ns"], subresources=_STATUS, namespaced=False
)
NODES = _resource("v1", "nodes", "Node", short=["no"], subresources=_STATUS, namespaced=False)
PODS = _resource(
    "v1",
    "pods",
    "Pod",
    short=["po"],
    subresources=("status", "log", "exec", "attach", "portforward"),
    categories=_ALL,
)
SERVICES = _resource(
    "v1", "services", "Service", short=["svc"], subresources=_STATUS, categories=_ALL
)
ENDPOINTS = _resource("v1", "endpoints", "Endpoints", short=["ep"])
CONFIG_MAPS = _resource("v1", "configmaps", "ConfigMap", short=["cm"])
SECRETS = _resource("v1", "secrets", "Secret")
SERVICE_ACCOUNTS = _resource("v1", "serviceaccounts", "ServiceAccount", short=["sa"])
EVENTS = _resource("v1", "events", "Event", short=["ev"])
EVENTS_K8S_IO = _resource("events.k8s.io/v1", "events", "Event", short=["ev"])
PERSISTENT_VOLUME_CLAIMS = _resource(
    "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=["pvc"], subresources=_STATUS
)
DEPLOYMENTS = _resource(
    "apps/v1",
    "deployments",
    "Deployment",
    short=["deploy"],
    subresources=_STATUS_AND_SCALE,
    categories=_ALL,
)
REPLICA_SETS = _resource(
    "apps/v1",
    "replicasets",
    "ReplicaSet",
    short=["rs"],
    subresources=_STATUS_AND_SCALE,
    categories=_ALL,
)
STATEFUL_SETS = _resource(
    "apps/v1",
    "statefulsets",
    "StatefulSet",
    short=["sts"],
    subresources=_STATUS_AND_SCALE,
    categories=_ALL,
)
JOBS = _resource("batch/v1", "jobs", "Job", subresources=_STATUS, categories=_ALL)
LEASES = _resource("coordination.k8s.io/v1", "leases", "Lease")
ENDPOINT_SLICES = _resource("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
NETWORK_POLICIES = _resource(
    "networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", short=["netpol"]
)
POD_DISRUPTION_BUDGETS = _resource(
    "policy/v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    short=["pdb"],
    subresources=_STATUS,
)
HORIZONTAL_POD_AUTOSCALERS = _resource(
    "autoscaling/v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    short=["hpa"],
    subresources=_STATUS,
    categories=_ALL,
)
PRIORITY_CLASSES = _resource(
    "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", short=["pc"], namespaced=False
)
STORAGE_CLASSES = _resource(
    "storage.k8s.io/v1", "storageclasses", "StorageClass", short=["sc"], namespaced=False
)
ROLES = _resource("rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDINGS = _resource("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = _resource(
    "rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS = _resource(
    "rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CUSTOM_RESOURCE_DEFINITIONS = _resource(
    "apiextensions.k8s.io/v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    short=["crd", "crds"],
    subresources=_STATUS,
    namespaced=False,
    categories=["api-extensions"],
)

# Questions about the caller: answered, never kept.
SELF_SUBJECT_ACCESS_REVIEWS = _resource(
    "authorization.k8s.io/v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
    verbs=("create",),
)
SELF_SUBJECT_RULES_REVIEWS = _resource(
    "authorization.k8s.io/v1",
    "selfsubjectrulesreviews",
    "SelfSubjectRulesReview",
    namespaced=False,
    verbs=("create",),
)
SELF_SUBJECT_REVIEWS = _resource(
    "authentication.k8s.io/v1",
    "selfsubjectreviews",
    "SelfSubjectReview",
    namespaced=False,
    verbs=("create",),
)
REVIEWS = (SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_RULES_REVIEWS, SELF_SUBJECT_REVIEWS)

BUILTIN_RESOURCES: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    ENDPOINTS,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    EVENTS,
    EVENTS_K8S_IO,
    PERSISTENT_VOLUME_CLAIMS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    JOBS,
    LEASES,
    ENDPOINT_SLICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    CUSTOM_RESOURCE_DEFINITIONS,
    *REVIEWS,
)

# Kept for charts and operators that create them, while nothing in local mode acts on them; whoever
# writes one is told so.
UNATTENDED: frozenset[Resource] = frozenset(
    (
        HORIZONTAL_POD_AUTOSCALERS,
        JOBS,
        NETWORK_POLICIES,
        PERSISTENT_VOLUME_CLAIMS,
        POD_DISRUPTION_BUDGETS,
        PRIORITY_CLASSES,
        STATEFUL_SETS,
        STORAGE_CLASSES,
    )
)
