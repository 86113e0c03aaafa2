"""Runs the API over HTTPS on a loopback address.

store = Store()
async with running_server(store) as server:
    server.write_kubeconfig(path)
"""

import ipaddress
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from .clock import Clock, wall_clock
from .http import make_app
from .kubeconfig import render_kubeconfig, write_kubeconfig
from .logs import LogSource
from .store import Store
from .tls import make_identity
from .verbs import Verbs

_SHUTDOWN_S = 2.0


class ApiServer:
    """A running server: where it is, and what a client needs to be let in."""

    def __init__(self, verbs: Verbs, *, url: str, token: str, ca_pem: str) -> None:
        self._verbs = verbs
        self.url = url
        self.token = token
        self.ca_pem = ca_pem

    @property
    def store(self) -> Store:
        return self._verbs.store

    @property
    def log_source(self) -> LogSource | None:
        return self._verbs.log_source

    @log_source.setter
    def log_source(self, source: LogSource | None) -> None:
        self._verbs.log_source = source

    def write_kubeconfig(self, path: Path, *, namespace: str = "default") -> None:
        """Writes a kubeconfig (0600) with the token in it."""
        text = render_kubeconfig(self.url, self.token, self.ca_pem, namespace=namespace)
        write_kubeconfig(path, text)


class NotLoopback(ValueError):
    """The server starts processes for whoever holds its token, so it stays on this machine."""


@asynccontextmanager
async def running_server(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log_source: LogSource | None = None,
    clock: Clock = wall_clock,
) -> AsyncIterator[ApiServer]:
    """Serves `store` until the block is left, and every watch with it. Port 0 takes a free one."""
    if not ipaddress.ip_address(host).is_loopback:
        raise NotLoopback(f"{host} is no loopback address; choose one such as 127.0.0.1")
    token = secrets.token_urlsafe(32)
    identity = make_identity(host)
    verbs = Verbs(store, clock)
    verbs.log_source = log_source
    runner = web.AppRunner(
        make_app(verbs, token),
        access_log=None,
        handler_cancellation=True,  # a watch ends when its client leaves
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        bound = await _listen(runner, host, port, identity.context)
        shown = f"[{host}]" if ":" in host else host
        yield ApiServer(verbs, url=f"https://{shown}:{bound}", token=token, ca_pem=identity.ca_pem)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext) -> int:
    site = web.TCPSite(runner, host, port, ssl_context=context)
    await site.start()
    bound: int = runner.addresses[0][1]
    return bound
