"""The Deployment of the engine pods."""

from dataclasses import dataclass
from typing import Any, Final

from octavo_operator.api.spec import InferenceService
from octavo_operator.core.names import (
    LABEL_REVISION,
    deployment_name,
    pod_labels,
    selector_labels,
)
from octavo_operator.core.render.common import hash_of, make_metadata, with_manifest_hash
from octavo_operator.core.render.resources import make_resources, unlimited_cores
from octavo_wire.names import (
    ENGINE_CONTAINER,
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    ENV_CPU_LIMIT,
    GPU_RESOURCE,
    ROUTE_LIVE,
    ROUTE_READY,
    engine_image,
)
from octavo_wire.settings import EngineSettings, render_args

# Distroless's "nonroot", so that images and volumes agree on one number.
USER_ID: Final = 65532
GRACE_PERIOD_S: Final = 30
# Time to open the port, which comes before the model is read: a load has no limit, since nobody
# can tell a slow one from one that hangs.
STARTUP_PERIOD_S: Final = 2
STARTUP_BUDGET_S: Final = 300
# When a service whose pods are not ready yet is told to make no progress; nothing is ended by it.
PROGRESS_DEADLINE_S: Final = 2100


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """Where the engine images come from."""

    registry: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How pods of a new revision take over, and why so."""

    spec: dict[str, Any]
    reason: str
    message: str


WITHOUT_SURGE: Final = "RollingUpdateWithoutSurge"


def choose_strategy(service: InferenceService, *, spare: bool = True) -> Strategy:
    """Surge only where a spare place is likely: a second pod on a full GPU would wait for ever.

    `spare` False: it was tried, and there is none.
    """
    if service.gpus > 0 and service.spec.replicas <= 1:
        return Strategy(
            spec={"type": "Recreate"},
            reason="RecreateNoSpareAccelerator",
            message="The old pod goes first, since a new one beside it would need a spare GPU",
        )
    if service.gpus > 0 or not spare:
        what = "would need a spare GPU" if service.gpus > 0 else "finds no room"
        return Strategy(
            spec={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            reason=WITHOUT_SURGE,
            message=f"One old pod goes before each new one, since one more beside them {what}",
        )
    return Strategy(
        spec={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        reason="RollingUpdate",
        message="A new pod is started beside the old ones, each of which goes once it is ready",
    )


def make_engine_settings(service: InferenceService) -> dict[str, Any]:
    """What the engine is told, by names of `EngineSettings`; None leaves the choice to it."""
    engine = service.spec.engine
    seqs = engine.max_num_seqs
    default_tokens = int(EngineSettings(model="").max_num_batched_tokens)
    return {
        "model": service.spec.model.uri,
        "served_model_name": service.spec.model.name,
        # No device: the images set OCTAVO_DEVICE, so a pod with a broken driver says so instead of
        # crawling on its CPU; and local mode sets its own, so one manifest serves both.
        "port": ENGINE_PORT,
        "dtype": engine.dtype,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": seqs,
        # Each running sequence takes a token of a step.
        "max_num_batched_tokens": seqs if seqs is not None and seqs > default_tokens else None,
    }


def make_deployment(
    service: InferenceService, images: ImageSource, strategy: Strategy
) -> dict[str, Any]:
    pod_spec = _make_pod_spec(service, images)
    revision = hash_of(pod_spec)
    return with_manifest_hash(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": make_metadata(service, deployment_name(service.name)),
            "spec": {
                "replicas": service.spec.replicas,
                "revisionHistoryLimit": 2,
                "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
                "strategy": strategy.spec,
                "selector": {"matchLabels": selector_labels(service.name)},
                "template": {
                    "metadata": {"labels": pod_labels(service.name, revision)},
                    "spec": pod_spec,
                },
            },
        }
    )


def revision_of(deployment: dict[str, Any]) -> str:
    """The revision that a rendered Deployment gives its pods."""
    return str(deployment["spec"]["template"]["metadata"]["labels"][LABEL_REVISION])


def _make_pod_spec(service: InferenceService, images: ImageSource) -> dict[str, Any]:
    gpu = service.gpus > 0
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_PERIOD_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_make_container(service, engine_image_of(service, images))],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if gpu:
        # Nodes with GPUs are commonly kept free of pods that do not ask for one.
        spec["tolerations"] = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    return spec


def engine_image_of(service: InferenceService, images: ImageSource) -> str:
    return engine_image(images.version, gpu=service.gpus > 0, registry=images.registry)


def _make_container(service: InferenceService, image: str) -> dict[str, Any]:
    resources = make_resources(service)
    cores = unlimited_cores(resources)
    return {
        "name": ENGINE_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", *render_args(make_engine_settings(service))],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - in the container, a volume
            # The numeric user is in no passwd file, and getpass.getuser() gives up without this.
            {"name": "USER", "value": "octavo"},
            {"name": "XDG_CACHE_HOME", "value": "/tmp/cache"},  # noqa: S108
            {"name": "TRITON_CACHE_DIR", "value": "/tmp/cache/triton"},  # noqa: S108
            # Without a limit of its own it would start a thread for every core of the node.
            *([{"name": ENV_CPU_LIMIT, "value": cores}] if cores is not None else []),
        ],
        "ports": [{"name": ENGINE_PORT_NAME, "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": resources,
        # A loading engine is live, so a long load is never a death sentence.
        "startupProbe": _probe(
            ROUTE_LIVE, period_s=STARTUP_PERIOD_S, failures=STARTUP_BUDGET_S // STARTUP_PERIOD_S
        ),
        "livenessProbe": _probe(ROUTE_LIVE, period_s=10, failures=6),
        "readinessProbe": _probe(ROUTE_READY, period_s=2, failures=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": ENGINE_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
