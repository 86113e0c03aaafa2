"""Loopback addresses for pods: 127.x.y.z, one each, never 127.0.0.1.

Several local clusters may run on one machine, so each claims a network of its own. The claim is a
bound socket: the kernel lets one process have it, and takes it back when that process dies.
"""

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

# A /16 away from 127.0.x.x, where other programs of the machine look for one another.
POD_NETWORK: Final = ipaddress.IPv4Network("127.77.0.0/16")
# Bound on a part's last address for as long as the part is claimed; nothing listens there.
_CLAIM_PORT: Final = 47077


class NoAddressAvailable(RuntimeError):
    """No loopback address can be had; the message says why."""


class AddressPool:
    """Hands out addresses of one claimed network, in turn, so that a freed one rests a while."""

    def __init__(self, network: ipaddress.IPv4Network, claim: socket.socket) -> None:
        self.network = network
        self._claim = claim
        self._used: set[str] = set()
        self._turn = self._addresses()

    @classmethod
    def claim(cls) -> "AddressPool":
        """A pool over the first part (/24) of POD_NETWORK that no other cluster holds."""
        check_bindable(str(POD_NETWORK[1]))
        for network in POD_NETWORK.subnets(new_prefix=24):
            claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                claim.bind((str(network[-2]), _CLAIM_PORT))
            except OSError:
                claim.close()
            else:
                return cls(network, claim)
        raise NoAddressAvailable(f"every part of {POD_NETWORK} is taken by another local cluster")

    def close(self) -> None:
        """Give the whole network back."""
        self._claim.close()

    def _addresses(self) -> Iterator[str]:
        while True:
            for host in list(self.network.hosts())[:-1]:
                yield str(host)

    def take(self) -> str:
        """An address that no pod of this machine has."""
        # Neither the network's own address, nor its broadcast address, nor the claimed one.
        if len(self._used) >= self.network.num_addresses - 3:
            raise NoAddressAvailable(f"all addresses of {self.network} are in use")
        for address in self._turn:
            if address not in self._used:
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
