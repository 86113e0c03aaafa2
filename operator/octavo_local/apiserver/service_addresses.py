"""Cluster addresses of Services: loopback ones, on which the node can listen unprivileged."""

import ipaddress
from collections.abc import Container

from .resources import Object

SERVICE_NETWORK = ipaddress.ip_network("127.96.0.0/16")


def assign_cluster_ip(service: Object, taken: Container[str | None]) -> None:
    """Gives a new Service an address, in place, unless it is headless or only a name."""
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = next(
            address for address in map(str, SERVICE_NETWORK.hosts()) if address not in taken
        )
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
