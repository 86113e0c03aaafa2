"""Ends what a killed `octavo up` leaves behind.

A process that is killed with -9 cannot clean up. Its containers' first processes die with it
(see launch.py), but their children would live on. So one guardian per node reads from a pipe whose
processes the node starts and sees end; when the pipe ends, it kills those that are left.
"""

import signal
import subprocess
import sys
from typing import IO, Self

from octavo_local.node.sessions import Family, kill_family


class Guardian:
    """The node's end of the pipe: `watch` a container that starts, `release` one that ended."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls) -> Self:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "octavo_local.node.guardian"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal must not end it first
        )
        assert process.stdin is not None
        return cls(process, process.stdin)

    def watch(self, family: Family) -> None:
        self._tell(f"+{family.session_id} {family.mark}\n")

    def release(self, family: Family) -> None:
        self._tell(f"-{family.session_id} {family.mark}\n")

    def close(self) -> None:
        """Let it kill what is left and end."""
        if not self._pipe.closed:
            self._pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        self._pipe.write(line.encode())
        self._pipe.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    living: set[Family] = set()
    for line in sys.stdin:
        session_id, mark = line[1:].split()
        family = Family(int(session_id), mark)
        if line.startswith("+"):
            living.add(family)
        else:
            living.discard(family)
    for family in living:
        kill_family(family)


if __name__ == "__main__":
    main()
