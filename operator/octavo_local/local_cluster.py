"""A cluster of one machine in this process: API server, controllers, node, local ports."""

import asyncio
import contextlib
import importlib.metadata
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import aiohttp

from octavo_local.apiserver.resources import NODES, PODS, SERVICES, Resource
from octavo_local.apiserver.server import running_server
from octavo_local.apiserver.store import Store
from octavo_local.apply import Applier, Manifest, load_manifests
from octavo_local.cluster import Cluster, EventRecorder
from octavo_local.controllers.loop import Controllers
from octavo_local.node.addresses import AddressPool
from octavo_local.node.backoff import Backoff
from octavo_local.node.guardian import Guardian
from octavo_local.node.images import Images
from octavo_local.node.kubelet import Kubelet, make_node
from octavo_local.node.pods import NodeContext
from octavo_local.node.sessions import SharedTable
from octavo_local.node.surroundings import cache_home
from octavo_local.objects import Object, annotations_of
from octavo_local.services import URL_ANNOTATION, LocalUrl, ServicePorts
from octavo_local.state import StateDir
from octavo_wire import names

NODE_NAME: Final = "local"
OPERATOR_NAMESPACE: Final = "octavo-system"
INFERENCE_SERVICES: Final = Resource(
    group=names.API_GROUP,
    version=names.API_VERSION,
    plural=names.PLURAL,
    kind=names.KIND,
    singular=names.KIND.lower(),
    custom=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What the machine offers: more resources, more images, where local ports begin."""

    resources: Mapping[str, Fraction]
    images: frozenset[str]
    first_port: int
    backoff: Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A running one; `failed` is set to the task that ended when none should."""

    cluster: Cluster
    applier: Applier
    kubelet: Kubelet
    state: StateDir
    url: str
    failed: asyncio.Future[str]

    async def install_definitions(self) -> None:
        """Serve InferenceServices."""
        for manifest in load_manifests([definitions_path()]):
            await self.applier.apply(manifest)

    async def install_operator(self) -> None:
        """Start the operator: its manifests are those that the chart renders."""
        for manifest in load_manifests([manifests_folder() / "operator.yaml"]):
            await self.applier.apply(manifest)

    async def apply(self, manifest: Manifest) -> Object:
        return await self.applier.apply(manifest)

    def inference_service(self, namespace: str, name: str) -> Object | None:
        return self.cluster.get(INFERENCE_SERVICES, namespace, name)

    def operator_pods(self) -> list[Object]:
        return self.cluster.list(PODS, OPERATOR_NAMESPACE)

    def url_of(self, namespace: str, service: str) -> str | None:
        """The local URL of a Service, once it has one."""
        found = self.cluster.get(SERVICES, namespace, service)
        return annotations_of(found).get(URL_ANNOTATION) if found else None


@contextlib.asynccontextmanager
async def running_cluster(
    state: StateDir, options: ClusterOptions, announce: Callable[[LocalUrl], None]
) -> AsyncIterator[LocalCluster]:
    """Start everything; on the way out every process that it started ends."""
    version = importlib.metadata.version("octavo")
    store = Store()
    cluster = Cluster(store)
    home = cache_home()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    guardian = Guardian.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(guardian.close)
        addresses = AddressPool.claim()
        stack.callback(addresses.close)
        server = await stack.enter_async_context(running_server(store))
        server.write_kubeconfig(state.kubeconfig)
        context = NodeContext(
            cluster=cluster,
            events=EventRecorder(cluster, "kubelet", time.time),
            images=Images(version=version, python=sys.executable, admitted=options.images),
            guardian=guardian,
            processes=SharedTable(),
            backoff=options.backoff,
            root=state.pods,
            home=home,
            kubeconfig=state.kubeconfig,
            token=server.token,
            node=lambda: cluster.get(NODES, "", NODE_NAME) or {},
        )
        _register_node(cluster, make_node(NODE_NAME, options.resources, version, time.time()))
        kubelet = Kubelet(context, NODE_NAME, addresses)
        server.log_source = kubelet
        ports = ServicePorts(cluster, first_port=options.first_port, announce=announce)
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.create_task(kubelet.run(), name="node"),
            asyncio.create_task(Controllers(cluster).run(), name="controllers"),
            asyncio.create_task(ports.run(), name="local ports"),
        ]
        for task in tasks:
            task.add_done_callback(lambda ended: _note_failure(ended, failed))
        trust = ssl.create_default_context(cadata=server.ca_pem)
        connector = aiohttp.TCPConnector(ssl=trust)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        try:
            yield LocalCluster(
                cluster=cluster,
                applier=Applier(session, server.url, server.token),
                kubelet=kubelet,
                state=state,
                url=server.url,
                failed=failed,
            )
        finally:
            # The controllers first, or they would replace the pods that the node ends.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await ports.close()
            await kubelet.shut_down()


def manifests_folder() -> Path:
    return Path(__file__).parent / "manifests"


def definitions_path() -> Path:
    """The definition in the repository, or its copy in an installed package."""
    in_repository = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
    return in_repository if in_repository.exists() else manifests_folder() / in_repository.name


def _register_node(cluster: Cluster, node: Object) -> None:
    registered = cluster.create(NODES, node)
    cluster.write_status(NODES, registered, node["status"])


def _note_failure(task: asyncio.Task[None], failed: asyncio.Future[str]) -> None:
    if task.cancelled() or failed.done():
        return
    failed.set_result(f"{task.get_name()} ended: {task.exception()!r}")
