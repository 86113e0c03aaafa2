"""The HTTP application: its routes, what their errors look like, what stands before them."""

import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from octavo_engine.errors import OctavoError
from octavo_engine.serving.api_options import ApiOptions
from octavo_engine.serving.auth import ApiKeys, RequireApiKey
from octavo_engine.serving.errors import (
    GenerationFailed,
    NoSuchRoute,
    error_headers,
    error_payload,
    error_status,
)
from octavo_engine.serving.request_ids import NameRequests
from octavo_engine.serving.routes_generate import GenerateRoutes
from octavo_engine.serving.routes_server import ServerRoutes
from octavo_engine.serving.routes_tokens import TokenRoutes
from octavo_engine.serving.sse import ClientGone
from octavo_engine.serving.state import ServerState
from octavo_wire.names import ROUTE_INTERNAL_STATE, ROUTE_LIVE, ROUTE_METRICS, ROUTE_READY

_LOG = logging.getLogger(__name__)
_CLIENT_CLOSED_REQUEST: Final = 499  # nobody reads it; it is the customary status in logs


def make_app(
    state: ServerState,
    *,
    api_keys: ApiKeys | None = None,
    options: ApiOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """The server's ASGI application; `clock` is the one that the engine's core uses."""
    options = options or ApiOptions()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    about = ServerRoutes(state)
    tokens = TokenRoutes(state)
    generate = GenerateRoutes(state, options, clock=clock)

    def add(method: str, path: str, endpoint: Callable[..., Awaitable[Response]]) -> None:
        app.add_api_route(path, _guarded(endpoint), methods=[method], response_model=None)

    add("GET", "/health", about.live)
    add("GET", ROUTE_LIVE, about.live)
    add("GET", ROUTE_READY, about.ready)
    add("GET", ROUTE_METRICS, about.metrics)
    add("GET", ROUTE_INTERNAL_STATE, about.internal_state)
    add("GET", "/version", about.version)
    add("GET", "/openapi.json", about.openapi)
    add("GET", "/v1/models", about.models)
    add("GET", "/v1/models/{model:path}", about.model)
    add("POST", "/v1/chat/completions", generate.chat)
    add("POST", "/v1/completions", generate.completions)
    add("POST", "/v1/embeddings", about.embeddings)
    add("POST", "/tokenize", tokens.tokenize)
    add("POST", "/detokenize", tokens.detokenize)
    app.add_exception_handler(OctavoError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_no_route)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    inner: ASGIApp = app
    if api_keys is not None:
        inner = RequireApiKey(app, api_keys, metrics_need_key=options.metrics_need_key)
    return NameRequests(inner, access_log=options.access_log, clock=clock)


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    return JSONResponse(
        error_payload(error), status_code=error_status(error), headers=error_headers(error)
    )


async def _answer_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _answer_error(request, NoSuchRoute(message, status=error.status_code))


def _guarded(endpoint: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """Answer a mistake of ours with a 500 that tells no details, and keep the connection.

    Left to the framework, the connection would be closed under the client's next request.
    """

    @functools.wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Response:
        try:
            return await endpoint(*arguments, **named)
        except (OctavoError, HTTPException, ClientGone, ClientDisconnect):
            raise
        except Exception:
            _LOG.exception("answering a request failed")
            failure = GenerationFailed("The server made a mistake; its log says more")
            return JSONResponse(error_payload(failure), status_code=error_status(failure))

    return call


async def _answer_nobody(_: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)
