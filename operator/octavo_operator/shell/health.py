"""The operator's health endpoint: it answers from the start, the Lease held or not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

ROUTE: Final = "/healthz"


@asynccontextmanager
async def serve_health(host: str, port: int) -> AsyncIterator[int]:
    """Answer GET /healthz as long as the event loop runs; yields the port. Raises OSError."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get(ROUTE, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
