"""One operator acts at a time: the holder of a coordination.k8s.io Lease.

acquire() ──► hold() ──► LeaseLost: the process must end
    │           │
    └───────────┴─ cancelled ──► release()
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from octavo_operator.shell.cluster import Cluster, ClusterError

logger = logging.getLogger(__name__)

RELEASE_ATTEMPTS: Final = 3


class LeaseLost(Exception):
    """Another operator holds the Lease, or it could not be renewed in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A state of the Lease, and when it was first seen, by this process's own clock."""

    holder: str
    renewed: str
    seen_at_s: float


def may_take(lease: Mapping[str, Any], identity: str, seen: Sighting, now_s: float) -> bool:
    """Whether the Lease is free, ours already, or its holder has been silent for too long.

    Silence is measured by one clock, from when this state was first seen: the holder's clock may
    be wrong. A holder of our own name is this pod before its restart.
    """
    if not seen.holder or seen.holder == identity:
        return True
    duration_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0)
    return now_s - seen.seen_at_s >= duration_s


class LeaderLease:
    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._retry_s = duration_s / 6
        self._renew_s = duration_s / 3
        # Stop acting before anybody else may start.
        self._deadline_s = duration_s * 2 / 3
        self._clock = clock
        self._sleep = sleep
        self._seen: Sighting | None = None
        self._held: dict[str, Any] | None = None
        self._may_hold = False  # a write of ours may have arrived, even one that was cut off

    async def acquire(self) -> None:
        """Return once the Lease is ours; waits as long as another operator renews it."""
        told_of = ""
        while True:
            try:
                holder = await self._try_take()
            except ClusterError as error:
                logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
            else:
                if holder == self._identity:
                    logger.info("%s holds lease %s/%s", holder, self._namespace, self._name)
                    return
                if holder != told_of:
                    logger.info("waiting: %s holds the lease", holder or "somebody else")
                    told_of = holder
            await self._sleep(self._retry_s)

    async def hold(self) -> NoReturn:
        """Renew the Lease for ever; raises LeaseLost when that fails."""
        renewed_at_s, pause_s = self._clock(), self._renew_s
        while True:
            await self._sleep(pause_s)
            started_s = self._clock()
            left_s = self._deadline_s - (started_s - renewed_at_s)
            try:
                async with asyncio.timeout(max(0.1, left_s)):
                    holder = await self._renew()
            except (ClusterError, TimeoutError) as error:
                silent_s = self._clock() - renewed_at_s
                if silent_s >= self._deadline_s:
                    self._may_hold = False
                    raise LeaseLost(f"not renewed for {silent_s:.0f} s: {error!r}") from error
                logger.warning("lease not renewed, trying again: %r", error)
                pause_s = self._retry_s
                continue
            if holder != self._identity:
                self._may_hold = False
                raise LeaseLost(f"{holder or 'somebody else'} holds the lease now")
            renewed_at_s, pause_s = started_s, self._renew_s

    async def release(self) -> None:
        """Give the Lease up, so that another operator need not wait for it to run out."""
        if not self._may_hold:
            return
        self._may_hold = False
        try:
            for _ in range(RELEASE_ATTEMPTS):
                if await self._try_release():
                    return
        except ClusterError as error:
            logger.warning("lease not released, it will run out: %s", error)

    async def _try_release(self) -> bool:
        """Whether the Lease is not ours any more; False when it changed meanwhile."""
        # Read anew: a renewal that was cut off on our side may have been written all the same.
        lease = await self._cluster.get("Lease", self._namespace, self._name)
        if lease is None or lease["spec"].get("holderIdentity") != self._identity:
            return True
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace({**lease, "spec": spec})
        except ClusterError as error:
            if error.status != 409:
                raise
            return False
        return True

    async def _renew(self) -> str:
        """Write a new time on the Lease that we hold; returns who holds it then."""
        assert self._held is not None, "renewing comes after acquiring"
        spec = {**self._held["spec"], "renewTime": _micro_time()}
        try:
            self._held = await self._cluster.replace({**self._held, "spec": spec})
        except ClusterError as error:
            if error.status not in (404, 409):
                raise
            # Written by somebody, or deleted: look who holds it, and take it if it is still ours.
            return await self._try_take()
        return self._identity

    async def _try_take(self) -> str:
        """Take the Lease if it may be taken; returns who holds it."""
        lease = await self._cluster.get("Lease", self._namespace, self._name)
        if lease is None:
            return await self._create()
        spec: dict[str, Any] = lease.get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if self._seen is None or (self._seen.holder, self._seen.renewed) != (holder, renewed):
            self._seen = Sighting(holder=holder, renewed=renewed, seen_at_s=self._clock())
        if not may_take(lease, self._identity, self._seen, self._clock()):
            return holder
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        wanted = {**lease, "spec": self._make_spec(transitions)}
        self._may_hold = True
        try:
            self._held = await self._cluster.replace(wanted)
        except ClusterError as error:
            if error.status == 409:  # somebody else was quicker
                return holder
            raise
        return self._identity

    async def _create(self) -> str:
        self._may_hold = True
        try:
            self._held = await self._cluster.create(
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": self._make_spec(0),
                }
            )
        except ClusterError as error:
            if error.status == 409:
                return ""
            raise
        return self._identity

    def _make_spec(self, transitions: int) -> dict[str, Any]:
        now = _micro_time()
        return {
            "holderIdentity": self._identity,
            # The API takes whole seconds, one at least.
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
