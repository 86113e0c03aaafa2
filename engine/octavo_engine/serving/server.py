"""The life of an `octavo serve` process: listen, load, serve, drain, end.

The port opens before the model is loaded, so that probes are answered from the first second. The
model loads elsewhere, in the core's process or in a thread; the event loop only learns of its end.

    SIGTERM ─► not ready, but requests are taken ─► 503, running answers finish ─► end
               until --drain-accept-seconds         until --drain-seconds
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from octavo_engine.config import ModelDescription
from octavo_engine.errors import CannotStart
from octavo_engine.serving.api_options import ApiOptions
from octavo_engine.serving.app import make_app
from octavo_engine.serving.async_engine import AsyncEngine, Observer
from octavo_engine.serving.auth import ApiKeys
from octavo_engine.serving.launch import CoreLost, Launch, LaunchedCore
from octavo_engine.serving.metrics import EngineMetrics
from octavo_engine.serving.prompts import PromptEncoder
from octavo_engine.serving.state import Phase, Served, ServerState
from octavo_engine.serving.step_log import StepLog
from octavo_wire.failures import EXIT_CANNOT_START, Reason, StartupFailure
from octavo_wire.settings import EngineSettings

_LOG = logging.getLogger(__name__)
# What a dying server leaves for its last error answers to go out.
_LAST_WORDS_S: Final = 0.5
# What a core has to end its present step. Then a process is killed, and a thread is left behind.
_STOP_S: Final = 0.5
# Clients that read their answers slowly get this much beyond --drain-seconds; the default of that
# (25 s), this and the core's end fit into the 30 s after which Kubernetes kills.
_FLUSH_S: Final = 2
EXIT_ENGINE_DIED: Final = 1
EXIT_FORCED: Final = 128 + signal.SIGTERM


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
    """One server process. `launch` loads the engine and starts its core."""

    def __init__(
        self,
        settings: EngineSettings,
        launch: Launch,
        *,
        model_name: str,
        announce: Callable[[str], None],
    ) -> None:
        """`announce` gets the lines that a person at the terminal should see."""
        self._settings = settings
        self._launch = launch
        self._announce = announce
        self.state = ServerState(
            model_name=model_name,
            metrics=EngineMetrics(model_name=model_name, block_size=settings.block_size),
        )
        self.failure: StartupFailure | None = None
        self._exit_status: int | None = None
        self._http: _HttpServer | None = None
        self._loading: asyncio.Task[None] | None = None
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
            app = make_app(self.state, api_keys=keys, options=self._api_options())
            self._http = _HttpServer(_http_config(app))
            if on_signals:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGTERM, self.shut_down)
                # From a terminal: no one else sends requests here who would have to be told.
                loop.add_signal_handler(signal.SIGINT, self.shut_down, 0.0)
            self._announce(f"listening on {self._url}, loading {self.state.model_name}")
            self._loading = asyncio.create_task(self._load(step_log))
            try:
                await self._http.serve(sockets=[listener])
            finally:
                await self._stop()
        return 0 if self._exit_status is None else self._exit_status

    async def _stop(self) -> None:
        """Leave no process behind, nor a thread that could end in time."""
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loading
        if self.state.served is not None:
            await self.state.served.engine.stop(_STOP_S)

    def _api_options(self) -> ApiOptions:
        settings = self._settings
        return ApiOptions(
            max_tokens_policy=settings.max_tokens_policy,
            priority_wait_s=settings.priority_wait_seconds,
            request_timeout_s=settings.request_timeout_seconds,
            metrics_need_key=settings.metrics_need_key,
            access_log=self._announce if settings.access_log else None,
        )

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

    async def _load(self, step_log: StepLog | None) -> None:
        try:
            launched = await self._launch(self._on_progress)
        except CannotStart as error:
            self._on_cannot_start(error.failure, EXIT_CANNOT_START)
            return
        except Exception as error:
            self._on_load_failed(error)
            return
        try:
            prompts = await asyncio.to_thread(PromptEncoder, launched.core.model)
        except BaseException as error:
            await launched.link.stop(_STOP_S)
            if isinstance(error, CannotStart):
                self._on_cannot_start(error.failure, EXIT_CANNOT_START)
            elif isinstance(error, Exception):
                self._on_load_failed(error)
            else:
                raise
            return
        self._on_loaded(launched, prompts, step_log)

    def _on_load_failed(self, error: Exception) -> None:
        if not isinstance(error, CoreLost):  # its process has written its own traceback
            _LOG.critical("loading the model failed", exc_info=error)
        failure = _internal_error("Loading the model failed", error)
        self._on_cannot_start(failure, EXIT_ENGINE_DIED)

    def _on_progress(self, phase: str, share: float) -> None:
        self.state.loading = (phase, share)

    def _on_cannot_start(self, failure: StartupFailure, exit_status: int) -> None:
        self.failure = failure
        self.state.phase = Phase.DEAD
        self._end(exit_status)

    def _on_loaded(
        self, launched: LaunchedCore, prompts: PromptEncoder, step_log: StepLog | None
    ) -> None:
        state, core = self.state, launched.core
        observers: list[Observer] = [state.metrics, state.prefill_rate]
        if step_log is not None:
            observers.append(step_log)
        engine = AsyncEngine(
            launched.link, stats=core.stats, observers=observers, on_death=self._on_engine_death
        )
        state.metrics.on_loaded(core.model.cache, core.stats)
        state.served = Served(model=core.model, prompts=prompts, engine=engine, limits=core.config)
        if state.phase is Phase.LOADING:
            state.phase = Phase.READY
        engine.start()
        seconds = time.monotonic() - state.started_s
        self._announce(describe(core.model, state.model_name, self._url, seconds))

    # -- the end -----------------------------------------------------------------------------

    def shut_down(self, accept_s: float | None = None) -> None:
        """First call: be no longer ready, and finish what runs. Second call: end now.

        accept_s: for how long requests are still taken; default: as the settings say.
        """
        if self.state.phase in (Phase.LEAVING, Phase.DRAINING, Phase.DEAD):
            self._announce("ending at once")
            self._end(EXIT_FORCED, force=True)
            return
        served = self.state.served
        if served is None:
            self.state.phase = Phase.DRAINING
            self._end(0)
            return
        if accept_s is None:
            accept_s = self._settings.drain_accept_seconds
        self.state.phase = Phase.LEAVING
        self._announce(f"shutting down, {served.engine.num_open_requests} requests to finish")
        self._spawn(self._drain(served.engine, accept_s))

    async def _drain(self, engine: AsyncEngine, accept_s: float) -> None:
        if accept_s:
            await asyncio.sleep(accept_s)
        if self.state.phase is not Phase.LEAVING:
            return
        self.state.phase = Phase.DRAINING
        if engine.num_open_requests:
            left_s = max(0.0, self._settings.drain_seconds - accept_s)
            try:
                await asyncio.wait_for(engine.wait_until_idle(), left_s)
            except TimeoutError:
                self._announce(f"{engine.num_open_requests} requests did not finish in time")
                engine.abort_all()
        self._end(0)

    def _on_engine_death(self, error: BaseException) -> None:
        self.failure = _internal_error("The engine died", error)
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


def _internal_error(what: str, error: BaseException) -> StartupFailure:
    why = str(error) if isinstance(error, CoreLost) else f"{type(error).__name__}: {error}"
    return StartupFailure(
        reason=Reason.INTERNAL_ERROR,
        message=f"{what}: {why}.",
        next_action="Unless memory ran out, this is a fault of Octavo; its log says more. Please "
        "report it.",
    )


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
        timeout_graceful_shutdown=_FLUSH_S,
    )
