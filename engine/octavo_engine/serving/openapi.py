"""The OpenAPI document, made from the types that requests are checked by.

It says what this server does and no more: the one model's name is the only value of `model`, and
a field that is not listed is refused.
"""

import copy
from collections.abc import Iterable
from typing import Any, Final

import pydantic
from pydantic import BaseModel

from octavo_engine.serving import responses
from octavo_engine.serving.http_input import TIMEOUT_HEADER
from octavo_engine.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo_engine.serving.request_ids import REQUEST_ID_HEADER
from octavo_wire.names import ROUTE_INTERNAL_STATE, ROUTE_LIVE, ROUTE_METRICS, ROUTE_READY

_SCHEMAS: Final = "#/components/schemas/"
_REQUESTS: Final = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
_ANSWERS: Final = (
    responses.ChatAnswer,
    responses.CompletionAnswer,
    responses.Models,
    responses.Model,
    responses.Tokens,
    responses.Text,
    responses.Version,
    responses.Health,
    responses.Error,
)
_REASONS: Final = {
    400: "a field is wrong, or prompt and answer cannot fit; `param` names the field",
    401: "the API key is missing or wrong",
    404: "no such model, or the model cannot do this",
    413: "the body is too large",
    429: "too much is queued; `Retry-After` says when to come back",
    500: "the request failed through no fault of its own",
    503: "no requests are taken now; `Retry-After` says when to come back",
    504: "the time for the request was up before it had a token",
}


def make_document(model_name: str, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for a server of one model."""
    keyed = _errors(401)
    asked = _errors(400, 401, 404, 413, 503)
    generated = asked | _errors(429, 500, 504)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version},
        "components": {
            "schemas": _schemas(model_name),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "paths": {
            "/v1/chat/completions": _post(ChatRequest, responses.ChatAnswer, generated),
            "/v1/completions": _post(CompletionRequest, responses.CompletionAnswer, generated),
            "/v1/models": _get(responses.Models, keyed | _errors(503)),
            "/v1/models/{model}": _get(
                responses.Model,
                keyed | _errors(404, 503),
                parameters=[
                    {
                        "name": "model",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "string", "minLength": 1},
                        "example": model_name,
                    }
                ],
            ),
            "/v1/embeddings": {
                "post": {
                    "summary": "Refused: the model makes no embeddings",
                    "responses": _errors(401, 404),
                    "security": _SECURITY,
                }
            },
            "/tokenize": _post(TokenizeRequest, responses.Tokens, asked),
            "/detokenize": _post(DetokenizeRequest, responses.Text, asked),
            "/version": _get(responses.Version, keyed),
            "/health": _health(),
            ROUTE_LIVE: _health(),
            ROUTE_READY: _health(),
            ROUTE_METRICS: {
                "get": {
                    "summary": "Metrics in the text format of Prometheus",
                    "responses": {"200": {"description": "metrics", "content": _TEXT}} | keyed,
                }
            },
            ROUTE_INTERNAL_STATE: {
                "get": {
                    "summary": "Load of this engine, for autoscalers and gateways of Octavo",
                    "responses": {"200": {"description": "the load", "content": _OBJECT}} | keyed,
                    "security": _SECURITY,
                }
            },
        },
    }


# With no keys configured, none is asked for.
_SECURITY: Final[list[dict[str, list[str]]]] = [{}, {"key": []}]
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_OBJECT: Final = {"application/json": {"schema": {"type": "object"}}}
_HEADERS: Final = {REQUEST_ID_HEADER: {"schema": {"type": "string"}}}


def _reference(kind: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _SCHEMAS + kind.__name__}


def _response(text: str, kind: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _reference(kind)}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": text, "content": content, "headers": _HEADERS}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _response(_REASONS[status], responses.Error) for status in statuses}


def _post(
    request: type[BaseModel], answer: type[BaseModel], errors: dict[str, Any]
) -> dict[str, Any]:
    generates = "stream" in request.model_fields
    operation: dict[str, Any] = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(request)}},
        },
        "responses": {"200": _response("the answer", answer, streams=generates)} | errors,
        "security": _SECURITY,
    }
    if generates:
        operation["parameters"] = [
            {
                "name": TIMEOUT_HEADER,
                "in": "header",
                "description": "seconds that the request may take",
                "schema": {"type": "number", "exclusiveMinimum": 0},
            }
        ]
    return {"post": operation}


def _get(
    answer: type[BaseModel],
    errors: dict[str, Any],
    parameters: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "responses": {"200": _response("the answer", answer)} | errors,
        "security": _SECURITY,
    }
    if parameters:
        operation["parameters"] = list(parameters)
    return {"get": operation}


def _health() -> dict[str, Any]:
    answers = {
        "200": _response("yes", responses.Health),
        "503": _response("no", responses.Health),
    }
    return {"get": {"responses": answers}}


def _schemas(model_name: str) -> dict[str, Any]:
    _, document = pydantic.json_schema.models_json_schema(
        [(kind, "validation") for kind in (*_REQUESTS, *_ANSWERS)],
        ref_template=_SCHEMAS + "{model}",
    )
    schemas: dict[str, Any] = copy.deepcopy(document["$defs"])
    for kind in _REQUESTS:
        schema = schemas[kind.__name__]
        required = schema.get("required", ())
        for name, field in schema["properties"].items():
            if name == "model":
                field["enum"] = [model_name] if name in required else [model_name, None]
            # A field that is null is a field left out.
            elif name not in required and {"type": "null"} not in field.get("anyOf", ()):
                schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}
    schemas[TokenizeRequest.__name__]["oneOf"] = [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
    ]
    return schemas
