"""A name for each request, told to its client and in the access log, and used for nothing else.

The engine knows requests by ids of its own, so two clients may give the same name.
"""

import re
import uuid
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_wire.names import ROUTE_METRICS

REQUEST_ID_HEADER: Final = "X-Request-Id"
_HEADER: Final = REQUEST_ID_HEADER.lower().encode()
# What can stand in a header and in one field of a log line.
_NAME = re.compile(rb"[!-~]{1,128}")


class NameRequests:
    """Middleware: gives a client's X-Request-Id back, or a new one, and writes the access log.

    A line has no words of prompts or answers: the time, what was asked for, the status, the name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access_log: Callable[[str], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._app = app
        self._access_log = access_log
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(_HEADER, b"")
        name = given if _NAME.fullmatch(given) else uuid.uuid4().hex.encode()
        started_s = self._clock()
        status = 0  # of a request that had no answer, since its client left

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (_HEADER, name)]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            if self._access_log is not None and not _is_probe(scope["path"]):
                took_ms = (self._clock() - started_s) * 1e3
                what = f"{scope['method']} {ascii(scope['path'][:128])[1:-1]}"
                self._access_log(f"{what} {status} {took_ms:.0f} ms id={name.decode()}")


def _is_probe(path: str) -> bool:
    return path.startswith("/health") or path == ROUTE_METRICS
