"""Process sessions of this machine, from /proc: who is in one, what memory it holds, its end.

Every container is a session of its own, so its children stay known even when their parent died.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def processes_of_session(session_id: int) -> Iterator[int]:
    """Process ids of a session's members, zombies left out."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue  # it ended between the listing and the reading
        # The command name stands in parentheses and may hold anything, a ")" included.
        state, _, _, session, *_ = stat[stat.rindex(")") + 2 :].split()
        if int(session) == session_id and state not in ("Z", "X"):
            yield int(name)


def signal_session(session_id: int, number: signal.Signals) -> None:
    """Send a signal to every member; those that are gone already are no error."""
    for process_id in list(processes_of_session(session_id)):
        try:
            os.kill(process_id, number)
        except ProcessLookupError:
            continue


def kill_session(session_id: int) -> None:
    """Kill every member, also those that are forked meanwhile."""
    for _ in range(100):
        if not any(True for _ in processes_of_session(session_id)):
            return
        signal_session(session_id, signal.SIGKILL)


def memory_bytes_of_session(session_id: int) -> int:
    """Memory that only these processes hold: anonymous and shared pages, no file cache.

    That is what a cgroup cannot reclaim; pages of a mapped weights file it can.
    """
    total_kib = 0
    for process_id in processes_of_session(session_id):
        try:
            status = Path("/proc", str(process_id), "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total_kib += int(line.split()[1])
    return total_kib * 1024
