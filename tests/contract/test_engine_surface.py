"""Probes and scrapers reach routes and series that the engine has."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.serving.app import make_app
from octavo_engine.serving.metrics import EngineMetrics
from octavo_engine.serving.state import ServerState
from octavo_operator.api.spec import parse_service
from octavo_operator.core.render.deployment import ImageSource, choose_strategy, make_deployment
from octavo_operator.core.render.services import make_services
from octavo_wire import metrics as series
from octavo_wire.names import ROUTE_METRICS
from support.inference import make_object


@pytest.fixture
def get() -> Callable[[str], Any]:
    """GET from an engine whose model is still loading."""
    metrics = EngineMetrics(model_name="m", block_size=16)
    app = make_app(ServerState(model_name="m", metrics=metrics))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")
    return client.get


def container() -> dict[str, Any]:
    service = parse_service(make_object())
    deployment = make_deployment(
        service, ImageSource(registry="", version="1"), choose_strategy(service)
    )
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("probe", "status"), [("startupProbe", 200), ("livenessProbe", 200), ("readinessProbe", 503)]
)
async def test_a_loading_engine_is_alive_and_not_ready(
    get: Callable[[str], Any], probe: str, status: int
) -> None:
    """P24: no probe kills a slow load."""
    answer = await get(container()[probe]["httpGet"]["path"])
    assert answer.status_code == status


async def test_every_series_is_there_from_the_start(get: Callable[[str], Any]) -> None:
    """P23."""
    answer = await get(ROUTE_METRICS)
    samples = {
        sample.name
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert set(series.GAUGES) | set(series.COUNTERS) <= samples
    assert {f"{name}_count" for name in series.HISTOGRAMS} <= samples


def test_ports_meet_by_name() -> None:
    (port,) = container()["ports"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["port"] == port["name"]
    for service in make_services(parse_service(make_object())):
        assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert f"--port={port['containerPort']}" in container()["args"]
