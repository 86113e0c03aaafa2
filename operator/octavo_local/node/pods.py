"""One pod on this node: its volumes, its containers in order, its status, its end."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from octavo_local.apiserver.resources import CONFIG_MAPS, PODS, SECRETS
from octavo_local.cluster import Cluster, EventRecorder
from octavo_local.node.backoff import Backoff
from octavo_local.node.containers import Container, Launch, remove_directory
from octavo_local.node.environment import (
    HOST_IP,
    ConfigError,
    expand_words,
    resolve_environment,
)
from octavo_local.node.guardian import Guardian
from octavo_local.node.images import Images
from octavo_local.node.logs import LogFile
from octavo_local.node.sessions import SharedTable
from octavo_local.node.status import Terminated, make_pod_status
from octavo_local.node.surroundings import make_base_environment
from octavo_local.node.volumes import (
    VolumeError,
    decode_data,
    mounts_of,
    remove_volumes,
    rewrite_paths,
    set_up_volumes,
)
from octavo_local.objects import Object, name_of, namespace_of
from octavo_wire import names

_VOLUME_RETRY_S: Final = 1.0
# Fields that change what a pod does and that this node cannot honour.
_UNSUPPORTED_IN_POD: Final = ("activeDeadlineSeconds", "ephemeralContainers", "resourceClaims")
_UNSUPPORTED_IN_CONTAINER: Final = ("volumeDevices",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What the pods of a node share."""

    cluster: Cluster
    events: EventRecorder
    images: Images
    guardian: Guardian
    processes: SharedTable
    backoff: Backoff
    root: Path  # a directory per pod, removed with it
    home: Path  # the HOME of every process, kept
    kubeconfig: Path
    token: str
    node: Callable[[], Mapping[str, Any]]


class PodWorker:
    """Lives as long as the pod; `run` ends when no process of it is left to run."""

    def __init__(self, context: NodeContext, pod: Object, pod_ip: str) -> None:
        self.pod = pod
        self.pod_ip = pod_ip
        self.uid = str(pod["metadata"]["uid"])
        self._context = context
        self._directory = context.root / self.uid
        self._volumes: dict[str, Path] = {}
        self._started_at = time.time()
        self._stopping = asyncio.Event()
        policy = pod["spec"].get("restartPolicy", "Always")
        # An init container has to succeed once: "Always" must not start it again after that.
        self._init = [
            self._make_container(spec, "Never" if policy == "Never" else "OnFailure")
            for spec in pod["spec"].get("initContainers") or ()
        ]
        self._main = [self._make_container(spec, policy) for spec in pod["spec"]["containers"]]

    def _make_container(self, spec: Mapping[str, Any], policy: str) -> Container:
        return Container(
            spec,
            self,
            restart_policy=policy,
            directory=self._directory / "containers" / spec["name"],
            guardian=self._context.guardian,
            processes=self._context.processes,
            backoff=self._context.backoff,
        )

    @property
    def grace_s(self) -> float:
        given = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if given is None:
            given = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        return float(given)

    async def run(self) -> None:
        """Set up the volumes, run the init containers in order, then all others together."""
        self.changed()
        await self._mount()
        for container in self._init:
            if self._stopping.is_set():
                return
            await container.run()
            state = container.record.state
            if not isinstance(state, Terminated) or state.exit_code:
                return
        if not self._stopping.is_set():
            await asyncio.gather(*(container.run() for container in self._main))

    async def stop(self) -> None:
        """End every process within the grace period."""
        self._stopping.set()
        grace_s = self.grace_s
        await asyncio.gather(*(item.stop(grace_s) for item in (*self._init, *self._main)))

    def kill(self) -> None:
        self._stopping.set()
        for container in (*self._init, *self._main):
            container.kill()

    def clean_up(self) -> None:
        """Remove what the pod left on disk."""
        remove_volumes(self.pod, self._directory / "volumes")
        remove_directory(self._directory)

    def log_of(self, container_name: str, *, previous: bool) -> LogFile | None:
        for container in (*self._init, *self._main):
            if container.spec["name"] == container_name:
                return container.previous_log if previous else container.log
        return None

    async def _mount(self) -> None:
        def lookup(kind: str, name: str) -> Mapping[str, bytes] | None:
            found = self._find(kind, name)
            return None if found is None else decode_data(kind, found)

        while not self._stopping.is_set():
            try:
                self._volumes = set_up_volumes(
                    self.pod,
                    self._directory / "volumes",
                    pod_ip=self.pod_ip,
                    node=self._context.node(),
                    lookup=lookup,
                    token=self._context.token if self._may_use_api() else None,
                )
                return
            except (VolumeError, ConfigError, OSError) as error:
                self._record("FailedMount", f"MountVolume.SetUp failed: {error}", is_warning=True)
            try:
                async with asyncio.timeout(_VOLUME_RETRY_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def _find(self, kind: str, name: str) -> Object | None:
        resource = SECRETS if kind == "Secret" else CONFIG_MAPS
        return self._context.cluster.get(resource, namespace_of(self.pod), name)

    def _may_use_api(self) -> bool:
        """Whoever may use the API may run any command here, so only pods with an account may."""
        spec = self.pod["spec"]
        named = spec.get("serviceAccountName") not in (None, "", "default")
        return named and spec.get("automountServiceAccountToken") is not False

    # What the containers ask of their pod.

    def prepare(self, container: Mapping[str, Any]) -> Launch:
        self._context.images.require(container["image"])
        _check_supported(self.pod["spec"], container)
        directory = self._directory / "containers" / container["name"]
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        message_file = directory / "termination-log"
        message_path = container.get("terminationMessagePath") or names.DEFAULT_TERMINATION_LOG
        mounts = mounts_of(container, self._volumes) | {message_path: message_file}

        def lookup(kind: str, name: str) -> Mapping[str, str] | None:
            found = self._find(kind, name)
            if found is None:
                return None
            data = decode_data(kind, found)
            return {key: value.decode(errors="replace") for key, value in data.items()}

        given = resolve_environment(
            self.pod, container, pod_ip=self.pod_ip, node=self._context.node(), lookup=lookup
        )
        # Before the entry point joins them: that one lies on this machine and in no volume.
        command, args = (
            [rewrite_paths(word, mounts) for word in expand_words(container.get(part) or (), given)]
            for part in ("command", "args")
        )
        words = self._context.images.command_of(container, command, args)
        base = make_base_environment(
            self.pod,
            container,
            pod_ip=self.pod_ip,
            home=self._context.home,
            message_file=message_file,
            kubeconfig=self._context.kubeconfig if self._may_use_api() else None,
        )
        rewritten = {name: rewrite_paths(value, mounts) for name, value in given.items()}
        cwd = directory
        if container.get("workingDir"):
            cwd = Path(rewrite_paths(container["workingDir"], mounts))
            if not cwd.is_dir():
                raise ConfigError(f"workingDir {cwd} is no directory of this machine")
        return Launch(
            words=words,
            env=base | rewritten,
            cwd=cwd,
            termination_log=message_file,
        )

    def changed(self) -> None:
        """Publish the status, if the pod is still there."""
        current = self._context.cluster.get(PODS, namespace_of(self.pod), name_of(self.pod))
        if current is None or current["metadata"]["uid"] != self.uid:
            return
        self.pod = current
        status = make_pod_status(
            current,
            [container.record for container in self._init],
            [container.record for container in self._main],
            pod_ip=self.pod_ip,
            host_ip=HOST_IP,
            started_at=self._started_at,
            now=time.time(),
        )
        self._context.cluster.write_status(PODS, current, status)

    def say(
        self, container: Mapping[str, Any], reason: str, message: str, *, is_warning: bool = False
    ) -> None:
        is_init = any(item.spec is container for item in self._init)
        group = "initContainers" if is_init else "containers"
        self._record(
            reason, message, is_warning=is_warning, path=f"spec.{group}{{{container['name']}}}"
        )

    def _record(
        self, reason: str, message: str, *, is_warning: bool = False, path: str = ""
    ) -> None:
        self._context.events.record(
            self.pod, "Pod", reason, message, is_warning=is_warning, field_path=path
        )


def _check_supported(spec: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    used = [f"spec.{field}" for field in _UNSUPPORTED_IN_POD if spec.get(field)]
    used += [field for field in _UNSUPPORTED_IN_CONTAINER if container.get(field)]
    if any(item.get("restartPolicy") for item in spec.get("initContainers") or ()):
        used.append("spec.initContainers[].restartPolicy (sidecar containers)")
    if used:
        raise ConfigError(f"local mode cannot honour {', '.join(used)}: leave it out")
