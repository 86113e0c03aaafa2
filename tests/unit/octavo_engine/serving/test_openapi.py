"""The served OpenAPI document describes this server: requests made from it find no lie."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from octavo_engine.serving.app import make_app
from octavo_engine.serving.openapi import make_document
from octavo_engine.serving.request_ids import NameRequests
from support.serving import MODEL, RunningServer, serve_fake

OPERATIONS = [
    (path, method) for path, item in make_document(MODEL, "1")["paths"].items() for method in item
]

RIGHT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
    },
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 2},
    "/tokenize": {"prompt": "greet"},
    "/detokenize": {"tokens": [5, 6]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_fake(max_model_len=48, num_blocks=65) as running:
        yield running


@pytest.fixture(scope="module")
def schema(server: RunningServer) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_route_is_described(server: RunningServer) -> None:
    document = server.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        assert "post" in document["paths"][path]
    app = make_app(server.server.state)
    assert isinstance(app, NameRequests)
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in app._app.routes  # type: ignore[attr-defined]
        for method in route.methods
    }
    served_but_not_described = {("/openapi.json", "get")}
    assert routes - served_but_not_described == set(OPERATIONS)
    names = document["components"]["schemas"]
    assert names["ChatRequest"]["properties"]["model"]["enum"] == [MODEL]
    assert names["ChatRequest"]["additionalProperties"] is False


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_requests_made_from_the_document(
    server: RunningServer, schema: Any, path: str, method: str
) -> None:
    """Right and wrong requests have answers of the statuses and the shapes that it promises."""
    operation = schema[path][method.upper()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    takes_body = method == "post" and path != "/v1/embeddings"
    cases = st.one_of(
        *(operation.as_strategy(generation_mode=mode) for mode in modes[: 1 + takes_body])
    )

    seen: set[int] = set()

    def check(case: Any) -> None:
        response = case.call()
        seen.add(response.status_code)
        assert response.status_code not in (500, 501, 502)
        for one in (
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
        ):
            case.validate_response(response, checks=[one])

    settings(
        max_examples=40 if takes_body else 3,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(case=cases)(check))()
    if takes_body:
        assert 400 in seen, "the requests were all right"
        # Chance may make no right one, for the document cannot say which fields go together.
        check(operation.Case(body=RIGHT[path]))
        assert 200 in seen
    assert server.client.get("/health/live").status_code == 200
