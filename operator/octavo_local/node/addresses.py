"""Loopback addresses for pods: 127.x.y.z, one each, never 127.0.0.1."""

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

# A /16 away from 127.0.x.x, where other programs of the machine look for one another.
POD_NETWORK: Final = ipaddress.ip_network("127.77.0.0/16")


class NoAddressAvailable(RuntimeError):
    """No loopback address can be had; the message says why."""


class AddressPool:
    """Hands out addresses in turn, so that a freed one is not reused while others are free."""

    def __init__(self, network: ipaddress.IPv4Network | ipaddress.IPv6Network = POD_NETWORK):
        self._network = network
        self._used: set[str] = set()
        self._turn = self._addresses()

    def _addresses(self) -> Iterator[str]:
        while True:
            for host in self._network.hosts():
                yield str(host)

    def take(self) -> str:
        """An address that no pod has and that this machine can bind."""
        if len(self._used) >= self._network.num_addresses - 2:
            raise NoAddressAvailable(f"all addresses of {self._network} are in use")
        for address in self._turn:
            if address not in self._used:
                check_bindable(address)
                self._used.add(address)
                return address
        raise AssertionError("the turn never ends")

    def give_back(self, address: str) -> None:
        self._used.discard(address)


def check_bindable(address: str) -> None:
    """Raise NoAddressAvailable unless a socket can listen on `address`."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise NoAddressAvailable(
            f"cannot listen on {address}: {error.strerror}. Local mode gives every pod a loopback "
            "address of its own, which Linux allows for all of 127.0.0.0/8; where only 127.0.0.1 "
            "exists, add the others to the loopback interface first"
        ) from error
