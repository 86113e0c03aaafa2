"""The HTTP routes: read, check, hand to the engine, answer."""

import asyncio
import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from octavo_engine.core.request import RequestSpec
from octavo_engine.errors import ContextTooLong, InvalidRequest, ModelNotServed, OctavoError
from octavo_engine.serving.answers import CHAT, COMPLETION, Answer, Choice, Shape
from octavo_engine.serving.auth import ApiKeys, RequireApiKey
from octavo_engine.serving.errors import (
    BodyTooLarge,
    GenerationFailed,
    NoSuchRoute,
    NotJson,
    error_headers,
    error_payload,
    error_status,
)
from octavo_engine.serving.health import liveness, readiness
from octavo_engine.serving.metrics import CONTENT_TYPE
from octavo_engine.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
    parse_request,
)
from octavo_engine.serving.sampling import make_sampling
from octavo_engine.serving.sse import ClientGone, EventStream, until_disconnect
from octavo_engine.serving.state import Served, ServerState
from octavo_engine.serving.text import TextAssembler
from octavo_wire.names import ROUTE_LIVE, ROUTE_METRICS, ROUTE_READY

_LOG = logging.getLogger(__name__)
MAX_BODY_BYTES: Final = 16 * 2**20
# Reading and encoding more than this takes milliseconds that other requests need.
_INLINE_BODY_BYTES: Final = 32 * 2**10
_CLIENT_CLOSED_REQUEST: Final = 499  # nobody reads it; it is the customary status in logs
_Result = TypeVar("_Result")


def make_app(
    state: ServerState,
    *,
    api_keys: ApiKeys | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """The server's ASGI application; `clock` is the one that the engine's core uses."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    routes = _Routes(state, clock)

    def add(method: str, path: str, endpoint: Callable[..., Awaitable[Response]]) -> None:
        app.add_api_route(path, _guarded(endpoint), methods=[method], response_model=None)

    add("GET", "/health", routes.live)
    add("GET", ROUTE_LIVE, routes.live)
    add("GET", ROUTE_READY, routes.ready)
    add("GET", ROUTE_METRICS, routes.metrics)
    add("GET", "/v1/models", routes.models)
    add("GET", "/v1/models/{model:path}", routes.model)
    add("POST", "/v1/chat/completions", routes.chat)
    add("POST", "/v1/completions", routes.completions)
    add("POST", "/tokenize", routes.tokenize)
    app.add_exception_handler(OctavoError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_no_route)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    return RequireApiKey(app, api_keys) if api_keys is not None else app


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


class _Routes:
    def __init__(self, state: ServerState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock

    async def live(self) -> Response:
        status, body = liveness(self._state)
        return JSONResponse(body, status_code=status)

    async def ready(self) -> Response:
        status, body = readiness(self._state)
        return JSONResponse(body, status_code=status)

    async def metrics(self) -> Response:
        return Response(self._state.metrics.render(), media_type=CONTENT_TYPE)

    async def models(self) -> Response:
        served = self._state.require_served()
        return JSONResponse({"object": "list", "data": [self._model_row(served)]})

    async def model(self, model: str) -> Response:
        served = self._state.require_served()
        self._check_model(model)
        return JSONResponse(self._model_row(served))

    def _model_row(self, served: Served) -> dict[str, Any]:
        return {
            "id": self._state.model_name,
            "object": "model",
            "created": self._state.created_s,
            "owned_by": "octavo",
            "max_model_len": served.model.max_model_len,
        }

    async def chat(self, http: Request) -> Response:
        served = self._state.require_served()
        arrival_s = self._clock()
        body = await read_body(http)
        request = await _aside(body, lambda: parse_request(ChatRequest, body))
        self._check_model(request.model)

        def encode() -> list[list[int]]:
            return [
                served.prompts.encode_chat(
                    request.messages, add_generation_prompt=request.add_generation_prompt
                )
            ]

        prompts = await _aside(body, encode)
        choices = _make_choices(served, request, prompts, arrival_s, "messages")
        return await self._answer(http, served, request, choices, CHAT)

    async def completions(self, http: Request) -> Response:
        served = self._state.require_served()
        arrival_s = self._clock()
        body = await read_body(http)
        request = await _aside(body, lambda: parse_request(CompletionRequest, body))
        self._check_model(request.model)

        def encode() -> list[list[int]]:
            return [served.prompts.encode_prompt(prompt) for prompt in request.prompts]

        prompts = await _aside(body, encode)
        choices = _make_choices(served, request, prompts, arrival_s, "prompt")
        return await self._answer(http, served, request, choices, COMPLETION)

    async def tokenize(self, http: Request) -> Response:
        served = self._state.require_served()
        body = await read_body(http)
        request = await _aside(body, lambda: parse_request(TokenizeRequest, body))
        if request.model is not None:
            self._check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("Give either prompt or messages", param="prompt")

        def encode() -> list[int]:
            if request.messages is not None:
                return served.prompts.encode_chat(
                    request.messages, add_generation_prompt=request.add_generation_prompt
                )
            return served.prompts.encode_prompt(
                request.prompt or "", add_special_tokens=request.add_special_tokens
            )

        tokens = await _aside(body, encode)
        return JSONResponse(
            {
                "tokens": tokens,
                "count": len(tokens),
                "max_model_len": served.model.max_model_len,
            }
        )

    async def _answer(
        self,
        http: Request,
        served: Served,
        request: GenerationRequest,
        choices: Sequence[Choice],
        shape: Shape,
    ) -> Response:
        options = request.stream_options
        answer = Answer(
            served.engine,
            choices,
            shape=shape,
            model_name=self._state.model_name,
            include_usage=options is not None and options.include_usage,
        )

        async def whole() -> dict[str, Any]:
            await answer.admit()
            return await answer.whole()

        if not request.stream:
            return JSONResponse(await until_disconnect(http.receive, whole))
        await until_disconnect(http.receive, answer.admit)
        return EventStream(answer.frames(), on_end=answer.close)

    def _check_model(self, name: str) -> None:
        if name != self._state.model_name:
            raise ModelNotServed(
                f"The model {name[:128]!r} is not served here; this server has "
                f"{self._state.model_name!r}",
                param="model",
            )


def _make_choices(
    served: Served,
    request: GenerationRequest,
    prompts: Sequence[list[int]],
    arrival_s: float,
    field: str,
) -> list[Choice]:
    choices = []
    for prompt in prompts:
        sampling = make_sampling(
            request, served.model, num_prompt_tokens=len(prompt), prompt_field=field
        )
        with _naming(field):
            served.check_admissible(len(prompt))
        spec = RequestSpec(
            request_id=uuid.uuid4().hex,
            prompt_token_ids=prompt,
            sampling=sampling,
            arrival_s=arrival_s,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        assembler = TextAssembler(
            served.prompts.tokenizer,
            sampling,
            stops=request.stops,
            include_stop=request.include_stop_str_in_output,
            skip_control=request.skip_special_tokens,
        )
        choices.append(Choice(spec=spec, text=assembler))
    return choices


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    """The scheduler knows lengths and no fields; the answer names the field."""
    try:
        yield
    except ContextTooLong as error:
        error.param = error.param or field
        raise


async def _aside(body: bytes, work: Callable[[], _Result]) -> _Result:
    """Do the work on a large body in a thread, and on a small one, which is quick, right here."""
    return work() if len(body) <= _INLINE_BODY_BYTES else await asyncio.to_thread(work)


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
