"""Local ports for Services: opened and closed as Services come and go, noted on them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from octavo_local.apiserver.resources import ENDPOINT_SLICES, SERVICES
from octavo_local.cluster import Cluster, next_within
from octavo_local.controllers.endpoints import SERVICE_NAME
from octavo_local.objects import Object, key_of, labels_of, name_of, namespace_of
from octavo_local.proxy import LOCAL_HOST, NoPortAvailable, PortProxy, Target

URL_ANNOTATION: Final = "local.octavo.dev/url"

ServicePort = tuple[str, str, int]  # namespace, name, port


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUrl:
    namespace: str
    service: str
    url: str


def wanted_ports(service: Object) -> list[ServicePort]:
    """The ports of a Service that get a local one: TCP, of Services with a selector and an IP."""
    spec = service["spec"]
    if not spec.get("selector") or spec.get("clusterIP") == "None":
        return []
    return [
        (*key_of(service), int(port["port"]))
        for port in spec.get("ports") or ()
        if port.get("protocol", "TCP") == "TCP"
    ]


def ready_targets(slices: list[Object], port_name: str) -> list[Target]:
    """Addresses and ports of the endpoints that are ready."""
    return [
        (endpoint["addresses"][0], port["port"])
        for item in slices
        for port in item.get("ports") or ()
        if (port.get("name") or "") == port_name
        for endpoint in item.get("endpoints") or ()
        if endpoint["conditions"].get("ready")
    ]


class ServicePorts:
    """Keeps one proxy per port of every Service that wants them."""

    def __init__(
        self, cluster: Cluster, *, first_port: int, announce: Callable[[LocalUrl], None]
    ) -> None:
        self._cluster = cluster
        self._first_port = first_port
        self._announce = announce
        self._proxies: dict[ServicePort, PortProxy] = {}

    async def run(self) -> None:
        changes = self._cluster.watch([SERVICES])
        try:
            while True:
                await self._sync()
                await next_within(changes, None)
        finally:
            changes.close()

    async def close(self) -> None:
        await asyncio.gather(*(proxy.close() for proxy in self._proxies.values()))
        self._proxies.clear()

    async def _sync(self) -> None:
        services = self._cluster.list(SERVICES)
        wanted = {port: service for service in services for port in wanted_ports(service)}
        for gone in self._proxies.keys() - wanted.keys():
            await self._proxies.pop(gone).close()
        for port, service in wanted.items():
            if port not in self._proxies:
                await self._open(port, service)

    async def _open(self, port: ServicePort, service: Object) -> None:
        declared = next(item for item in service["spec"]["ports"] if item["port"] == port[2])
        port_name = declared.get("name") or ""

        def targets() -> list[Target]:
            slices = [
                item
                for item in self._cluster.list(ENDPOINT_SLICES, port[0])
                if labels_of(item).get(SERVICE_NAME) == port[1]
            ]
            return ready_targets(slices, port_name)

        try:
            proxy = await PortProxy.open(targets, first_port=self._first_port)
            note = f"http://{LOCAL_HOST}:{proxy.port}"
            self._proxies[port] = proxy
            self._announce(LocalUrl(namespace=port[0], service=port[1], url=note))
        except NoPortAvailable as error:
            note = f"none: {error}"
        self._annotate(service, note)

    def _annotate(self, service: Object, note: str) -> None:
        def change(item: Object) -> Object | None:
            annotations = item["metadata"].get("annotations") or {}
            if URL_ANNOTATION in annotations and len(wanted_ports(item)) > 1:
                return None  # one annotation holds one URL: the first port's
            if annotations.get(URL_ANNOTATION) == note:
                return None
            metadata = item["metadata"] | {"annotations": {**annotations, URL_ANNOTATION: note}}
            return item | {"metadata": metadata}

        self._cluster.modify(SERVICES, namespace_of(service), name_of(service), change)
