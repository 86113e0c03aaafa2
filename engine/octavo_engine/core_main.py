"""The process of the engine's core: `python -m octavo_engine.core_main ADDRESS SERVER_PID`.

Started by `octavo serve`, never by hand. It lives for its server alone: signals that reach both are
the server's to answer, and the kernel ends it when the server's process has ended in any way.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from octavo_engine.serving.launch import LoadedEngine, Progress
    from octavo_wire.settings import EngineSettings

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(argv: Sequence[str], load: "Callable[[EngineSettings, Progress], LoadedEngine]") -> int:
    """Run a core whose engine is made by `load`; returns the exit status."""
    address, server_pid = argv
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _die_with(int(server_pid))
    # Imported after the signals are settled: a Ctrl-C meanwhile would end in a stack trace.
    from octavo_engine.serving.core_server import run_core

    logging.basicConfig(level=logging.WARNING, format="octavo: %(levelname)s %(message)s")
    return run_core(address, load)


def load_engine(settings: "EngineSettings", progress: "Progress") -> "LoadedEngine":
    from octavo_engine.threads import configure_threads

    configure_threads()
    # Imported here and now: this imports torch, after its threads are set.
    from octavo_engine.build import build_engine

    return build_engine(settings, progress=progress)


def _die_with(server_pid: int) -> None:
    """Have the kernel kill this process when its server ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != server_pid:
        sys.exit(1)  # it ended before the kernel was told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load_engine))
