"""Becomes a container's process: tied to the life of its parent, then replaced by the command.

Run as a script by an isolated interpreter: `python -I -S launch.py PARENT_PID WORD...`. Doing this
between fork and exec of the parent instead would run Python in a copy of a threaded process.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(137)  # the parent died before the signal was armed
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"exec {command[0]!r}: {error.strerror}", file=sys.stderr)  # noqa: T201 - goes to the log
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
