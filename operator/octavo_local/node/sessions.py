"""The processes of a container, from /proc: who they are, what memory they hold, their end.

Every container is a session of its own, so its children stay known even when their parent died.
A child that opens a session of its own (`setsid`, a daemon) is known by a mark that it inherits in
its environment. Only one that drops both its session and its environment is lost.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MARK_VARIABLE: Final = "OCTAVO_CONTAINER_MARK"
_MAX_ROUNDS: Final = 100
_TABLE_LIFETIME_S: Final = 0.5


def make_mark() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Family:
    """A container's first process, whose id is also its session's, and the mark of them all."""

    session_id: int
    mark: str


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """The processes of this machine at one moment, zombies left out."""

    rows: tuple[tuple[int, int, str], ...]  # process id, session id, mark ("" for none)

    @classmethod
    def read(cls) -> Self:
        return cls(tuple(_rows()))

    def members(self, family: Family) -> list[int]:
        """Process ids."""
        return [
            process_id
            for process_id, session_id, mark in self.rows
            if session_id == family.session_id or mark == family.mark
        ]


class SharedTable:
    """One reading of /proc for all who ask at about the same time, outside the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._table: ProcessTable | None = None
        self._read_at = 0.0

    async def get(self) -> ProcessTable:
        async with self._lock:
            if self._table is None or time.monotonic() - self._read_at > _TABLE_LIFETIME_S:
                self._table = await asyncio.to_thread(ProcessTable.read)
                self._read_at = time.monotonic()
            return self._table


def members_of(family: Family) -> list[int]:
    return ProcessTable.read().members(family)


def kill_family(family: Family) -> None:
    """Kill every member, also those that are forked meanwhile."""
    for _ in range(_MAX_ROUNDS):
        members = members_of(family)
        if not members:
            return
        for process_id in members:
            try:
                os.kill(process_id, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it is gone already


def memory_bytes_of(process_ids: list[int]) -> int:
    """Memory that only these processes hold: anonymous and shared pages, no file cache.

    That is what a cgroup cannot reclaim; pages of a mapped weights file it can.
    """
    total_kib = 0
    for process_id in process_ids:
        try:
            status = Path("/proc", str(process_id), "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total_kib += int(line.split()[1])
    return total_kib * 1024


def _rows() -> Iterator[tuple[int, int, str]]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue  # it ended between the listing and the reading
        # The command name stands in parentheses and may hold anything, a ")" included.
        state, _, _, session, *_ = stat[stat.rindex(")") + 2 :].split()
        if state not in ("Z", "X"):
            yield int(name), int(session), _mark_of(name)


def _mark_of(process: str) -> str:
    try:
        environment = Path("/proc", process, "environ").read_bytes()
    except OSError:
        return ""  # another user's, or gone
    prefix = MARK_VARIABLE.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode(errors="replace")
    return ""
