"""What is read of any HTTP request: its body within bounds, its time, the model's name."""

import asyncio
import math
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import Request

from octavo_engine.errors import InvalidRequest, ModelNotServed
from octavo_engine.serving.errors import BodyTooLarge, NotJson
from octavo_engine.serving.state import ServerState

MAX_BODY_BYTES: Final = 16 * 2**20
TIMEOUT_HEADER: Final = "X-Request-Timeout"
# Reading and encoding more than this takes milliseconds that other requests need.
_INLINE_BODY_BYTES: Final = 32 * 2**10
_Result = TypeVar("_Result")


async def read_body(http: Request) -> bytes:
    """The whole body. Raises NotJson, or BodyTooLarge as soon as it is, whatever it claims."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page may send other kinds to an address of this machine without asking anybody.
        raise NotJson(f"The Content-Type is {kind[:64] or 'missing'}; send application/json")
    pieces = []
    size = 0
    async for piece in http.stream():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def aside(body: bytes, work: Callable[[], _Result]) -> _Result:
    """Do the work on a large body in a thread, and on a small one, which is quick, right here."""
    return work() if len(body) <= _INLINE_BODY_BYTES else await asyncio.to_thread(work)


def read_timeout_s(http: Request, *, ceiling_s: float | None) -> float | None:
    """Seconds that the request may take: what it asks for, and at most the server's ceiling."""
    text = http.headers.get(TIMEOUT_HEADER)
    if text is None:
        return ceiling_s
    try:
        asked_s = float(text)
    except ValueError:
        asked_s = math.nan
    if not (math.isfinite(asked_s) and asked_s > 0):
        raise InvalidRequest(
            f"{TIMEOUT_HEADER} is {text[:64]!r}; give seconds, more than 0", param=TIMEOUT_HEADER
        )
    return asked_s if ceiling_s is None else min(asked_s, ceiling_s)


def check_model(state: ServerState, name: str) -> None:
    """Raises ModelNotServed."""
    if name != state.model_name:
        raise ModelNotServed(
            f"The model {name[:128]!r} is not served here; this server has {state.model_name!r}",
            param="model",
        )
