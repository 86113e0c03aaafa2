"""Local ports of Services: which get one, who answers, what happens when nobody does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from octavo_local.proxy import NoPortAvailable, PortProxy, Target
from octavo_local.services import ready_targets, wanted_ports


def make_service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s", "namespace": "n"}, "spec": {"selector": {"a": "b"}, **spec}}


@pytest.mark.parametrize(
    ("service", "ports"),
    [
        (make_service(ports=[{"port": 80}, {"port": 81}]), [("n", "s", 80), ("n", "s", 81)]),
        (make_service(ports=[{"port": 53, "protocol": "UDP"}]), []),
        (make_service(ports=[{"port": 80}], clusterIP="None"), []),
        (make_service(ports=[{"port": 80}], selector={}), []),
    ],
)
def test_services_that_get_a_local_port(service: dict[str, Any], ports: list[Any]) -> None:
    assert wanted_ports(service) == ports


def test_only_ready_endpoints_are_targets() -> None:
    def endpoint(address: str, ready: bool) -> dict[str, Any]:
        return {"addresses": [address], "conditions": {"ready": ready}}

    made = {
        "ports": [{"name": "http", "port": 8000}, {"name": "other", "port": 9}],
        "endpoints": [endpoint("127.77.0.1", True), endpoint("127.77.0.2", False)],
    }
    assert ready_targets([made], "http") == [("127.77.0.1", 8000)]


@asynccontextmanager
async def echo(name: str) -> AsyncIterator[Target]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(f"{name}: ".encode() + line)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        await server.wait_closed()


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_connections_go_to_the_targets_in_turn_and_around_dead_ones() -> None:
    async with echo("a") as first, echo("b") as second:
        targets = [first, second]
        proxy = await PortProxy.open(lambda: targets, first_port=18580)
        assert sorted([await ask(proxy.port), await ask(proxy.port)]) == [
            b"a: hello\n",
            b"b: hello\n",
        ]
        targets[:] = [("127.77.255.1", 1), second]
        assert {await ask(proxy.port) for _ in range(3)} == {b"b: hello\n"}
        targets.clear()
        assert (await ask(proxy.port)).startswith(b"HTTP/1.1 503 ")
        await proxy.close()


async def test_a_taken_port_is_passed_over_and_none_left_is_an_error() -> None:
    first = await PortProxy.open(lambda: [], first_port=18680)
    second = await PortProxy.open(lambda: [], first_port=first.port)
    assert second.port > first.port
    with pytest.raises(NoPortAvailable, match="--port"):
        await PortProxy.open(lambda: [], first_port=first.port, num_ports=1)
    await first.close()
    await second.close()
