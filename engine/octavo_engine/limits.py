"""What this process may use: CPU cores and bytes of memory, by the nearest limit that is set.

A container's limit is its cgroup's, never the machine's. Version 2 and version 1 of cgroups are
read; every level from the process's own group up to the root counts, and the tightest one wins.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo_engine.errors import CannotStart
from octavo_wire.failures import Reason
from octavo_wire.names import ENV_CPU_LIMIT, ENV_MEMORY_LIMIT

# Version 1 says "no limit" with the largest page-aligned number of 63 bits.
_UNLIMITED_BYTES = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFiles:
    """Where the kernel tells about control groups; tests point it elsewhere."""

    mount: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def folders(self, controller: str) -> Iterator[Path]:
        """Folders that may hold limits of `controller` for this process, from inner to outer."""
        for root, relative in self._places(controller):
            group = Path(relative.lstrip("/"))
            yield from (root / part for part in (group, *group.parents) if ".." not in part.parts)

    def _places(self, controller: str) -> Iterator[tuple[Path, str]]:
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            lines = ["0::/"]
        for line in lines:
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if not controllers:
                yield self.mount, path
            elif controller in controllers.split(","):
                yield self.mount / controllers, path
                yield self.mount / controller, path


def cpu_limit(env: Mapping[str, str] = os.environ, cgroup: CgroupFiles | None = None) -> float:
    """Cores that this process may use, perhaps a fraction: the least of environment, cgroup
    quota and affinity."""
    cgroup = cgroup or CgroupFiles()
    limits = [float(len(os.sched_getaffinity(0)))]
    if text := env.get(ENV_CPU_LIMIT):
        limits.append(_positive(text, ENV_CPU_LIMIT))
    for folder in cgroup.folders("cpu"):
        quota, period = _quota(folder)
        if quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits)


def memory_limit(
    env: Mapping[str, str] = os.environ, cgroup: CgroupFiles | None = None
) -> int | None:
    """Bytes that this process may use, or None where neither environment nor cgroup says."""
    cgroup = cgroup or CgroupFiles()
    limits = []
    if text := env.get(ENV_MEMORY_LIMIT):
        limits.append(int(_positive(text, ENV_MEMORY_LIMIT)))
    for folder in cgroup.folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _first_number(folder / name)
            if value is not None and 0 < value < _UNLIMITED_BYTES:
                limits.append(value)
    return min(limits, default=None)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that the machine could give without swapping, as the kernel estimates it."""
    return _field_bytes(meminfo, "MemAvailable:")


def resident_memory(status: Path = Path("/proc/self/status")) -> int:
    """Bytes of this process that are in memory now and are its own, files mapped not counted."""
    return _field_bytes(status, "RssAnon:", "VmRSS:")


def _field_bytes(path: Path, *keys: str) -> int:
    """The first of `keys` that the kernel gives, in bytes; its tables count in kB."""
    table = dict(
        line.split(maxsplit=1) for line in path.read_text().splitlines() if len(line.split()) > 1
    )
    for key in keys:
        if key in table:
            return int(table[key].split()[0]) * 1024
    raise OSError(f"{path} has none of {', '.join(keys)}")


def _quota(folder: Path) -> tuple[float, float]:
    """CPU quota and period of a group, in microseconds; (0, 0) where there is no limit."""
    try:
        quota, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
        return (0.0, 0.0) if quota == "max" else (float(quota), float(period or 100_000))
    except (OSError, ValueError):
        quota_us = _first_number(folder / "cpu.cfs_quota_us")
        period_us = _first_number(folder / "cpu.cfs_period_us")
        return float(quota_us or 0), float(period_us or 0)


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _positive(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise CannotStart(
            Reason.INVALID_SETTING,
            f"{name} is {text!r}, which is no number above 0.",
            "Unset it, or set it to the limit of the container.",
        )
    return number
