"""The core's end of the socket: load what the server names, then run until it says stop."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import zmq

from octavo_engine.errors import CannotStart
from octavo_engine.serving.core_loop import CoreLoop
from octavo_engine.serving.core_messages import (
    Command,
    Connected,
    CoreFailed,
    Loaded,
    LoadFailed,
    LoadProgress,
    decode_commands,
    decode_start,
    encode,
)
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.launch import LoadedEngine, Progress, describe_core
from octavo_wire.failures import EXIT_CANNOT_START
from octavo_wire.settings import EngineSettings

_LOG = logging.getLogger(__name__)
_EXIT_FAILED = 1
# How long the last message may take to leave, should the server be busy.
_LINGER_MS = 2000


def run_core(address: str, load: Callable[[EngineSettings, Progress], LoadedEngine]) -> int:
    """Be the core of the server that listens at `address`; returns the exit status."""
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.connect(address)
    try:
        return _run(socket, load)
    except CannotStart as error:
        socket.send(encode(LoadFailed(error.failure)))
        return EXIT_CANNOT_START
    except BaseException as error:
        _LOG.critical("the engine's core died", exc_info=error)
        socket.send(encode(CoreFailed(f"{type(error).__name__}: {error}")))
        return _EXIT_FAILED
    finally:
        socket.close()
        context.term()


def _run(
    socket: "zmq.Socket[bytes]", load: Callable[[EngineSettings, Progress], LoadedEngine]
) -> int:
    socket.send(encode(Connected()))
    settings = decode_start(socket.recv()).settings
    engine = load(settings, lambda phase, share: socket.send(encode(LoadProgress(phase, share))))
    core = EngineCore(engine.scheduler, engine.runner, clock=time.monotonic)
    socket.send(encode(Loaded(describe_core(engine, core))))

    def receive(wait: bool) -> Sequence[Command]:
        commands: list[Command] = []
        with contextlib.suppress(zmq.Again):
            commands += decode_commands(socket.recv(0 if wait else zmq.NOBLOCK))
            while True:
                commands += decode_commands(socket.recv(zmq.NOBLOCK))
        return commands

    CoreLoop(core, receive=receive, send=lambda events: socket.send(encode(events))).run()
    return 0
