"""Loopback addresses for pods: 127.x.y.z, one each, never 127.0.0.1.

Several local clusters may run on one machine, so each claims a network of its own. The claim is a
bound socket: the kernel lets one process have it, and takes it back when that process dies.
"""

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

# A /16 away from 127.0.x.x, where other programs of the machine look for one another.
POD_NETWORK: Final = ipaddress.ip_network("127.77.0.0/16")
# Bound on a part's last address for as long as the part is claimed; nothing listens there.
_CLAIM_PORT: Final = 47077


class NoAddressAvailable(RuntimeError):
    """No loopback address can be had; the message says why."""


class AddressPool:
    """Hands out addresses in turn, so that a freed one is not reused while others are free.

    A pool claims a part (/24) of the pod network for itself, since two local clusters on one
    machine would otherwise give their pods the same addresses and ports. The claim is a bound
    socket, so it ends with the process, however the process ends.
    """

    def __init__(self) -> None:
        self._part, self._claim = _claim_part()
        self._used: set[str] = set()
        self._turn = self._addresses()

    def close(self) -> None:
        """Give the whole part back."""
        self._claim.close()

    def _addresses(self) -> Iterator[str]:
        while True:
            for host in list(self._part.hosts())[:-1]:
                yield str(host)

    def take(self) -> str:
        """An address that no pod of this machine has."""
        if len(self._used) >= self._part.num_addresses - 3:
            raise NoAddressAvailable(f"all addresses of {self._part} are in use")
        for address in self._turn:
            if address not in self._used:
                self._used.add(address)
                return address
        raise AssertionError("the turn never ends")

    def give_back(self, address: str) -> None:
        self._used.discard(address)


def _claim_part() -> tuple[ipaddress.IPv4Network, socket.socket]:
    assert isinstance(POD_NETWORK, ipaddress.IPv4Network)
    check_bindable(str(POD_NETWORK[1]))
    for part in POD_NETWORK.subnets(new_prefix=24):
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((str(part[-2]), _CLAIM_PORT))
        except OSError:
            claim.close()
        else:
            return part, claim
    raise NoAddressAvailable(f"every part of {POD_NETWORK} is taken by another local cluster")


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
