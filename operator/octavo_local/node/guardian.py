"""Ends what a killed `octavo up` leaves behind.

A process that is killed with -9 cannot clean up. Its containers' first processes die with it
(see launch.py), but their children would live on. So one guardian per node reads the sessions that
the node opens and closes from a pipe; when the pipe ends, it kills those that are still open.
"""

import signal
import subprocess
import sys
from typing import IO, Self

from octavo_local.node.sessions import kill_session


class Guardian:
    """The node's end of the pipe: `watch` a session when it starts, `release` it when it ended."""

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

    def watch(self, session_id: int) -> None:
        self._tell(f"+{session_id}\n")

    def release(self, session_id: int) -> None:
        self._tell(f"-{session_id}\n")

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
    open_sessions: set[int] = set()
    for line in sys.stdin.buffer:
        session_id = int(line[1:])
        if line.startswith(b"+"):
            open_sessions.add(session_id)
        else:
            open_sessions.discard(session_id)
    for session_id in open_sessions:
        kill_session(session_id)


if __name__ == "__main__":
    main()
