"""The node: an object with a capacity, and a worker for every pod that is bound to it."""

import asyncio
import contextlib
import logging
import os
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from fractions import Fraction
from typing import Final

from octavo_local.apiserver.resources import PODS
from octavo_local.cluster import next_within
from octavo_local.node.addresses import AddressPool, NoAddressAvailable
from octavo_local.node.environment import HOST_IP
from octavo_local.node.logs import LogFile, strip_stamp
from octavo_local.node.pods import NodeContext, PodWorker
from octavo_local.objects import Object, format_time, is_deleting, name_of, namespace_of
from octavo_local.quantities import format_quantity

_MAX_PODS: Final = 110
_SHUTDOWN_GRACE_S: Final = 10.0

logger = logging.getLogger(__name__)


def make_node(name: str, extra: Mapping[str, Fraction], version: str, now: float) -> Object:
    """A Node with this machine's CPUs and memory; `extra` adds resources or overrides them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    capacity = {
        "cpu": Fraction(len(os.sched_getaffinity(0))),
        "memory": Fraction(memory),
        "pods": Fraction(_MAX_PODS),
        **extra,
    }
    amounts = {resource: format_quantity(amount) for resource, amount in capacity.items()}
    machine = platform.machine()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    moment = format_time(now)
    healthy = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture,
                "local.octavo.dev/node": "true",
            },
        },
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": HOST_IP},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": "pods of this node are processes of this machine",
                    "lastHeartbeatTime": moment,
                    "lastTransitionTime": moment,
                }
                for kind, status, reason in healthy
            ],
            "nodeInfo": {
                "architecture": architecture,
                "operatingSystem": "linux",
                "osImage": "octavo local mode",
                "kernelVersion": platform.release(),
                "kubeletVersion": f"octavo-{version}",
                "kubeProxyVersion": "",
                "containerRuntimeVersion": f"process://{version}",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }


class Kubelet:
    """Keeps the processes of this machine in step with the pods bound to the node."""

    def __init__(self, context: NodeContext, node_name: str, addresses: AddressPool) -> None:
        self._context = context
        self._node_name = node_name
        self._addresses = addresses
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        changes = self._context.cluster.watch([PODS])
        try:
            for pod in self._context.cluster.list(PODS):
                self._see(pod, is_gone=False)
            while True:
                change = await next_within(changes, None)
                assert change is not None
                _, pod, is_gone = change
                self._see(pod, is_gone=is_gone)
        finally:
            changes.close()

    async def shut_down(self) -> None:
        """End every process: kindly at first, then not."""
        workers = list(self._workers.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_GRACE_S):
                await asyncio.gather(*(worker.stop() for worker in workers))
        for worker in workers:
            worker.kill()
        tasks = list(self._tasks.values())
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
        for worker in workers:
            worker.clean_up()

    def kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    async def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        previous: bool,
        tail_lines: int | None,
        since: float | None,
        timestamps: bool,
    ) -> AsyncIterator[bytes]:
        """The API server's LogSource: a container's output; LookupError when it has none."""
        log = self.find_log(namespace, pod, container, previous=previous)
        if log is None:
            raise LookupError(f"{namespace}/{pod}/{container}")
        stamped = log.follow(tail=tail_lines, since=since, follow=follow)
        return _as_text(stamped, timestamps=timestamps)

    def find_log(
        self, namespace: str, pod_name: str, container: str, *, previous: bool
    ) -> LogFile | None:
        for worker in self._workers.values():
            if (namespace_of(worker.pod), name_of(worker.pod)) == (namespace, pod_name):
                return worker.log_of(container, previous=previous)
        return None

    def _see(self, pod: Object, *, is_gone: bool) -> None:
        if pod["spec"].get("nodeName") != self._node_name:
            return
        uid = str(pod["metadata"]["uid"])
        worker = self._workers.get(uid)
        if is_gone:
            if worker is not None:
                worker.kill()  # deleted with force: the object is gone, the processes must follow
                self._end(worker, lambda: None)
        elif worker is None:
            if is_deleting(pod):
                self._delete(pod)
            else:
                self._start(pod, uid)
        else:
            worker.pod = pod
            if is_deleting(pod):
                self._end(worker, lambda: self._delete(pod))

    def _start(self, pod: Object, uid: str) -> None:
        try:
            address = self._addresses.take()
        except NoAddressAvailable as error:
            self._context.events.record(
                pod, "Pod", "FailedCreatePodSandBox", str(error), is_warning=True
            )
            return
        worker = PodWorker(self._context, pod, address)
        self._workers[uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {name_of(pod)}")
        task.add_done_callback(_report)
        self._tasks[uid] = task

    def _delete(self, pod: Object) -> None:
        self._context.cluster.delete(
            PODS, namespace_of(pod), name_of(pod), uid=str(pod["metadata"]["uid"]), grace_s=0
        )

    def _end(self, worker: PodWorker, then: Callable[[], None]) -> None:
        if worker.uid not in self._tasks:
            return  # it is ending already
        task = self._tasks.pop(worker.uid)

        async def end() -> None:
            await worker.stop()
            await asyncio.gather(task, return_exceptions=True)
            worker.changed()
            then()
            self._workers.pop(worker.uid, None)
            self._addresses.give_back(worker.pod_ip)
            worker.clean_up()

        ending = asyncio.create_task(end(), name=f"end of pod {name_of(worker.pod)}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _as_text(lines: AsyncIterator[bytes], *, timestamps: bool) -> AsyncIterator[bytes]:
    async for line in lines:
        yield (line if timestamps else strip_stamp(line)) + b"\n"


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s: its worker failed", task.get_name(), exc_info=task.exception())
