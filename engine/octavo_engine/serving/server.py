"""The life of an `octavo serve` process: listen, load, serve, drain, end.

The port opens before the model is loaded, so that probes are answered from the first second. The
model loads in a thread; the event loop only learns of its end.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Final, Protocol

import uvicorn
from starlette.types import ASGIApp

from octavo_engine.config import ModelDescription
from octavo_engine.core.messages import Runner
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.errors import CannotStart
from octavo_engine.serving.app import make_app
from octavo_engine.serving.async_engine import AsyncEngine, Observer
from octavo_engine.serving.auth import ApiKeys
from octavo_engine.serving.engine import EngineCore
from octavo_engine.serving.metrics import EngineMetrics
from octavo_engine.serving.prompts import PromptEncoder
from octavo_engine.serving.state import Phase, Served, ServerState
from octavo_engine.serving.step_log import StepLog
from octavo_wire.failures import EXIT_CANNOT_START, Reason, StartupFailure
from octavo_wire.settings import EngineSettings

_LOG = logging.getLogger(__name__)
# Kubernetes kills 30 s after SIGTERM unless told otherwise; answers get most of that.
DRAIN_S: Final = 25.0
# What a dying server leaves for its last error answers to go out.
_LAST_WORDS_S: Final = 0.5
EXIT_ENGINE_DIED: Final = 1
EXIT_FORCED: Final = 128 + signal.SIGTERM


class LoadedEngine(Protocol):
    """What loading a model brings; see `build.BuiltEngine`."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def description(self) -> ModelDescription: ...


# Called with a phase of loading and its share done, 0 to 1.
Progress = Callable[[str, float], None]
Load = Callable[[Progress], LoadedEngine]


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: what a signal means here is ours to say."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotStart when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small pieces at once (TCP_NODELAY) only on sockets that name their protocol;
    # without it each piece may wait 40 ms for the client's acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise CannotStart(
            Reason.PORT_IN_USE if taken else Reason.INVALID_SETTING,
            f"The address {host}:{port} cannot be listened on: {error.strerror or error}.",
            "Stop the process that has it, or choose another with --host and --port.",
        ) from None
    listener.setblocking(False)
    return listener


class EngineServer:
    """One server process. `load` builds the engine; it runs in a thread of its own."""

    def __init__(
        self,
        settings: EngineSettings,
        load: Load,
        *,
        model_name: str,
        announce: Callable[[str], None],
        drain_s: float = DRAIN_S,
    ) -> None:
        """`announce` gets the lines that a person at the terminal should see."""
        self._settings = settings
        self._load = load
        self._announce = announce
        self._drain_s = drain_s
        self.state = ServerState(
            model_name=model_name,
            metrics=EngineMetrics(model_name=model_name, block_size=settings.block_size),
        )
        self.failure: StartupFailure | None = None
        self._exit_status: int | None = None
        self._http: _HttpServer | None = None
        self._loader: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._url = ""

    async def run(self, *, on_signals: bool = True) -> int:
        """Serve until told to end; returns the exit status. Raises CannotStart for the port, the
        key file and the step log, which are looked at before anything else."""
        settings = self._settings
        keys = ApiKeys.from_file(settings.api_key_file) if settings.api_key_file else None
        with contextlib.ExitStack() as stack:
            step_log = self._open_step_log(stack)
            listener = stack.enter_context(bind(settings.host, settings.port))
            host, port = listener.getsockname()[:2]
            self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            self._http = _HttpServer(_http_config(make_app(self.state, api_keys=keys)))
            if on_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, self.shut_down)
            self._start_loading(step_log)
            self._announce(f"listening on {self._url}, loading {self.state.model_name}")
            await self._http.serve(sockets=[listener])
            served = self.state.served
            if served is not None:
                await asyncio.to_thread(served.engine.stop, _LAST_WORDS_S)
        return 0 if self._exit_status is None else self._exit_status

    @property
    def has_busy_threads(self) -> bool:
        """Whether a thread is still in native code that the interpreter must not be torn from."""
        served = self.state.served
        loads = self._loader is not None and self._loader.is_alive()
        return loads or (served is not None and served.engine.is_alive)

    def _open_step_log(self, stack: contextlib.ExitStack) -> StepLog | None:
        path = self._settings.step_log
        if path is None:
            return None
        try:
            return stack.enter_context(StepLog(path))
        except OSError as error:
            raise CannotStart(
                Reason.INVALID_SETTING,
                f"--step-log {path} cannot be written: {error.strerror or error}.",
                "Give a path in a folder that exists and may be written.",
            ) from None

    # -- loading -----------------------------------------------------------------------------

    def _start_loading(self, step_log: StepLog | None) -> None:
        loop = asyncio.get_running_loop()
        observers: list[Observer] = [self.state.metrics]
        if step_log is not None:
            observers.append(step_log)

        def tell(callback: Callable[..., None], *arguments: object) -> None:
            # A loop that is closed belongs to a server that ended while its model loaded.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(callback, *arguments)

        def load() -> None:
            try:
                loaded = self._load(lambda phase, share: tell(self._on_progress, phase, share))
                prompts = PromptEncoder(loaded.description)
            except CannotStart as error:
                tell(self._on_cannot_start, error.failure, EXIT_CANNOT_START)
            except BaseException as error:
                _LOG.critical("loading the model failed", exc_info=error)
                failure = StartupFailure(
                    reason=Reason.INTERNAL_ERROR,
                    message=f"Loading the model failed: {type(error).__name__}: {error}.",
                    next_action="This is a fault of Octavo; its log says more. Please report it.",
                )
                tell(self._on_cannot_start, failure, EXIT_ENGINE_DIED)
            else:
                tell(self._on_loaded, loaded, prompts, observers)

        self._loader = threading.Thread(target=load, name="octavo-load", daemon=True)
        self._loader.start()

    def _on_progress(self, phase: str, share: float) -> None:
        self.state.loading = (phase, share)

    def _on_cannot_start(self, failure: StartupFailure, exit_status: int) -> None:
        self.failure = failure
        self.state.phase = Phase.DEAD
        self._end(exit_status)

    def _on_loaded(
        self, loaded: LoadedEngine, prompts: PromptEncoder, observers: list[Observer]
    ) -> None:
        if self.state.phase is not Phase.LOADING:
            return
        core = EngineCore(loaded.scheduler, loaded.runner, clock=time.monotonic)
        engine = AsyncEngine(core, observers=observers, on_death=self._on_engine_death)
        self.state.metrics.on_loaded(loaded.description.cache, core.stats())
        engine.start()
        self.state.served = Served(
            model=loaded.description,
            prompts=prompts,
            engine=engine,
            check_admissible=loaded.scheduler.check_admissible,
        )
        self.state.phase = Phase.READY
        seconds = time.monotonic() - self.state.started_s
        self._announce(describe(loaded.description, self.state.model_name, self._url, seconds))

    # -- the end -----------------------------------------------------------------------------

    def shut_down(self) -> None:
        """First call: take no more requests and finish those that run. Second call: end now."""
        if self.state.phase in (Phase.DRAINING, Phase.DEAD):
            self._announce("ending at once")
            self._end(EXIT_FORCED, force=True)
            return
        served = self.state.served
        self.state.phase = Phase.DRAINING
        if served is None:
            self._end(0)
            return
        self._announce(f"shutting down, {served.engine.num_open_requests} requests to finish")
        self._spawn(self._drain(served.engine))

    async def _drain(self, engine: AsyncEngine) -> None:
        try:
            await asyncio.wait_for(engine.wait_until_idle(), self._drain_s)
        except TimeoutError:
            self._announce(f"{engine.num_open_requests} requests did not finish in time")
            engine.abort_all()
        self._end(0)

    def _on_engine_death(self, error: BaseException) -> None:
        self.failure = StartupFailure(
            reason=Reason.INTERNAL_ERROR,
            message=f"The engine died: {type(error).__name__}: {error}.",
            next_action="This is a fault of Octavo; its log says more. Please report it.",
        )
        self.state.phase = Phase.DEAD
        self._spawn(self._last_words())

    async def _last_words(self) -> None:
        await asyncio.sleep(_LAST_WORDS_S)
        self._end(EXIT_ENGINE_DIED)

    def _end(self, exit_status: int, *, force: bool = False) -> None:
        if self._exit_status in (None, 0):
            self._exit_status = exit_status
        if self._http is not None:
            self._http.should_exit = True
            self._http.force_exit = self._http.force_exit or force

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def describe(model: ModelDescription, name: str, url: str, seconds: float) -> str:
    """What is served and from where, for the start-up log."""
    return "; ".join(
        [
            f"ready in {seconds:.1f} s: {name} at {url}/v1",
            *(model.notes or [f"max_model_len {model.max_model_len}"]),
        ]
    )


def _http_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=5,
    )
