"""Server-sent events as the OpenAI API frames them, and clients that go away."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_Result = TypeVar("_Result")
DONE: Final = b"data: [DONE]\n\n"
# One encoder for all: json.dumps makes a new one for each call with options.
_TO_JSON: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


class ClientGone(Exception):
    """The client closed its connection; there is nobody left to answer."""


def frame(payload: Mapping[str, Any]) -> bytes:
    """One event. JSON without line breaks, and without NaN, which is no JSON."""
    return f"data: {_TO_JSON(payload)}\n\n".encode()


class ChunkFramer:
    """Frames the chunks of one stream, which differ in their choices and usage alone."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._start = f'data: {_TO_JSON(head)[:-1]},"choices":'

    def frame(self, choices: Sequence[Mapping[str, Any]], tail: Mapping[str, Any]) -> bytes:
        """`tail` are fields behind the choices, often none."""
        rest = f",{_TO_JSON(tail)[1:]}" if tail else "}"
        return f"{self._start}{_TO_JSON(choices)}{rest}\n\n".encode()


async def until_disconnect(receive: Receive, work: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run `work`, and cancel it when the client disconnects; raises ClientGone then.

    Web frameworks cancel a stream when its client goes, if at all, and never a plain answer.
    """
    working = asyncio.ensure_future(work())
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An ASGI response that sends frames as they come and ends when the client does.

    `on_end` is called in any case, also when the client left before the first frame was asked for.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], *, on_end: Callable[[], None]) -> None:
        super().__init__()
        self._frames = frames
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with contextlib.aclosing(self._frames) as frames:
                async for data in frames:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await until_disconnect(receive, send_all)
        except (ClientGone, OSError):
            return
        finally:
            self._on_end()
