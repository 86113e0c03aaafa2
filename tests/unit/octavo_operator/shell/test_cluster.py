"""What stands between us and the API may answer in its stead."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.aio import client as kube_client

from octavo_operator.shell.cluster import Cluster, ClusterError, rights_for


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[bytes], Awaitable[Cluster]]]:
    runners: list[web.AppRunner] = []
    clusters: list[Cluster] = []

    async def start(body: bytes) -> Cluster:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, content_type="application/json")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        clusters.append(Cluster(kube_client.Configuration(host=f"http://{host}:{port}")))
        return clusters[-1]

    yield start
    for cluster in clusters:
        await cluster.__aexit__(None, None, None)
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("body", [b"<html>sign in</html>", b"[1]", b"\xff"])
async def test_an_answer_that_is_no_api_object_is_an_error_of_the_cluster(
    serve: Callable[[bytes], Awaitable[Cluster]], body: bytes
) -> None:
    cluster = await serve(body)
    with pytest.raises(ClusterError, match="no API object"):
        await cluster.knows_kind()
    with pytest.raises(ClusterError, match="no API object"):
        await cluster.list("Pod", None, "a=b")
    with pytest.raises(ClusterError, match="watch of Pod broke off"):
        async for _ in cluster.watch("Pod", None, "a=b", "1"):
            pass


async def test_a_list_without_metadata_is_read(
    serve: Callable[[bytes], Awaitable[Cluster]],
) -> None:
    cluster = await serve(json.dumps({"items": []}).encode())
    assert await cluster.list("Pod", None, "a=b") == ([], "")


def test_a_call_that_is_not_in_the_table_of_permissions_fails() -> None:
    assert rights_for("patch_status", "InferenceService") == {
        ("serving.octavo.dev", "inferenceservices/status", "patch")
    }
    with pytest.raises(AssertionError, match="not in the table"):
        rights_for("get", "Pod")
