"""API keys: read from a file, kept as hashes, compared in constant time."""

import hashlib
import hmac
from pathlib import Path
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine.errors import CannotStart
from octavo_engine.serving.errors import Unauthorized, error_headers, error_payload
from octavo_wire.failures import Reason
from octavo_wire.names import ROUTE_LIVE, ROUTE_METRICS, ROUTE_READY

_HEALTH_PATHS: Final = frozenset({"/health", ROUTE_LIVE, ROUTE_READY})


class ApiKeys:
    """The keys that callers may bear. Holds no key, only hashes."""

    def __init__(self, keys: list[str]) -> None:
        self._hashes = [_hash(key.encode()) for key in keys]

    @classmethod
    def from_file(cls, path: str) -> "ApiKeys":
        """One key a line; empty lines and lines that begin with # do not count.

        Raises CannotStart: an engine that was told to ask for keys never runs without.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotStart(
                Reason.INVALID_SETTING,
                f"--api-key-file {path} cannot be read: {error}.",
                "Check the path, or mount the secret that holds the keys.",
            ) from None
        keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
        if not keys:
            raise CannotStart(
                Reason.INVALID_SETTING,
                f"--api-key-file {path} holds no key.",
                "Write one key a line, or leave the flag out to serve without keys.",
            )
        return cls(keys)

    def accepts(self, authorization: bytes) -> bool:
        """Whether a header bears one of the keys; takes as long for each of them."""
        scheme, _, key = authorization.partition(b" ")
        given = _hash(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return scheme.lower() == b"bearer" and any(matches)


class RequireApiKey:
    """Middleware: every route but health asks for a key; metrics do if they are told to."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, *, metrics_need_key: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = _HEALTH_PATHS | (set() if metrics_need_key else {ROUTE_METRICS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._keys.accepts(headers.get(b"authorization", b"")):
            await self._app(scope, receive, send)
            return
        error = Unauthorized("This server asks for an API key: send `Authorization: Bearer KEY`")
        response = JSONResponse(
            error_payload(error), status_code=error.status, headers=error_headers(error)
        )
        await response(scope, receive, send)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
