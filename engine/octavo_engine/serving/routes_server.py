"""The routes that tell about the server: its health, its metrics, its model, its API."""

import importlib.metadata
from typing import Any

from starlette.responses import JSONResponse, Response

from octavo_engine.serving.errors import NoSuchRoute
from octavo_engine.serving.health import liveness, readiness
from octavo_engine.serving.http_input import check_model
from octavo_engine.serving.internal_state import internal_state
from octavo_engine.serving.metrics import CONTENT_TYPE
from octavo_engine.serving.openapi import make_document
from octavo_engine.serving.state import Served, ServerState


class ServerRoutes:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def live(self) -> Response:
        status, body = liveness(self._state)
        return JSONResponse(body, status_code=status)

    async def ready(self) -> Response:
        status, body = readiness(self._state)
        return JSONResponse(body, status_code=status)

    async def metrics(self) -> Response:
        return Response(self._state.metrics.render(), media_type=CONTENT_TYPE)

    async def internal_state(self) -> Response:
        return Response(internal_state(self._state), media_type="application/json")

    async def version(self) -> Response:
        return JSONResponse({"version": importlib.metadata.version("octavo")})

    async def openapi(self) -> Response:
        version = importlib.metadata.version("octavo")
        return JSONResponse(make_document(self._state.model_name, version))

    async def models(self) -> Response:
        served = self._state.require_served()
        return JSONResponse({"object": "list", "data": [self._model_row(served)]})

    async def model(self, model: str) -> Response:
        served = self._state.require_served()
        check_model(self._state, model)
        return JSONResponse(self._model_row(served))

    async def embeddings(self) -> Response:
        raise NoSuchRoute(
            f"The model {self._state.model_name!r} generates text and makes no embeddings",
            status=404,
        )

    def _model_row(self, served: Served) -> dict[str, Any]:
        return {
            "id": self._state.model_name,
            "object": "model",
            "created": self._state.created_s,
            "owned_by": "octavo",
            "max_model_len": served.model.max_model_len,
        }
