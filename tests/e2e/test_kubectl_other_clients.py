"""Clients other than kubectl: the kubernetes package, kopf, and plain HTTP with something wrong."""

import asyncio
import io
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from kubernetes.aio import client, config, watch

from support.api import Kubectl, RunningApi

GROUP, VERSION, PLURAL = "serving.octavo.dev", "v1alpha1", "inferenceservices"
SERVICE = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {"model": {"uri": "package://llm/model.gguf"}},
}


@pytest.fixture
async def k8s(api: RunningApi) -> AsyncIterator[client.ApiClient]:
    configuration = client.Configuration()
    await config.load_kube_config(str(api.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as found:
        yield found


async def test_the_python_client_lists_watches_and_patches(
    k8s: client.ApiClient, kubectl: Kubectl
) -> None:
    core = client.CoreV1Api(k8s)
    namespace = kubectl.namespace
    listed = await core.list_namespaced_config_map(namespace)
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async with watch.Watch() as stream:
            async for event in stream.stream(
                core.list_namespaced_config_map,
                namespace,
                resource_version=listed.metadata.resource_version,
                timeout_seconds=20,
            ):
                seen.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    return

    following = asyncio.create_task(follow())
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="one"), data={"a": "b"})
    await core.create_namespaced_config_map(namespace, body)
    patched = await core.patch_namespaced_config_map("one", namespace, {"data": {"c": "d"}})
    assert patched.data == {"a": "b", "c": "d"}
    await core.delete_namespaced_config_map("one", namespace)
    await asyncio.wait_for(following, 20)
    assert seen == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


async def test_the_python_client_applies_server_side_and_writes_status(
    k8s: client.ApiClient, kubectl: Kubectl
) -> None:
    custom = client.CustomObjectsApi(k8s)
    where = (GROUP, VERSION, kubectl.namespace, PLURAL, "chat")
    for _ in range(2):  # the client drops the answer to the first, a 201, as with a real server
        applied = await custom.patch_namespaced_custom_object(
            *where,
            SERVICE,
            field_manager="tester",
            force=True,
            _content_type="application/apply-patch+yaml",
        )
    assert applied["metadata"]["managedFields"][0]["manager"] == "tester"
    status = {**SERVICE, "status": {"url": "http://chat"}}
    del status["spec"]
    written = await custom.patch_namespaced_custom_object_status(
        *where,
        status,
        field_manager="tester",
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    assert written["status"] == {"url": "http://chat"}
    assert written["spec"]["model"] == SERVICE["spec"]["model"]
    status["status"] = {"modelName": "chat"}
    written = await custom.patch_namespaced_custom_object_status(
        *where,
        status,
        field_manager="tester",
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    assert written["status"] == {"modelName": "chat"}, "what is applied no more goes"


KOPF_HANDLERS = f"""
import kopf

@kopf.on.event("{GROUP}", "{VERSION}", "{PLURAL}")
async def seen(name, patch, body, **_):
    if not body.get("status", {{}}).get("url"):
        patch.status["url"] = f"http://{{name}}"
"""


def test_kopf_sees_an_object_and_writes_its_status(kubectl: Kubectl, tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(KOPF_HANDLERS)
    operator = subprocess.Popen(
        [sys.executable, "-m", "kopf", "run", "--namespace", kubectl.namespace, str(handlers)],
        env=kubectl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        kubectl.run("apply", "-f", "-", stdin=json.dumps(SERVICE))
        kubectl.run(
            "wait", "oisvc/chat", "--for=jsonpath={.status.url}=http://chat", "--timeout=30s"
        )
    finally:
        operator.send_signal(signal.SIGINT)
        output = operator.communicate(timeout=30)[0]
    assert "Traceback" not in output, output


async def request(api: RunningApi, path: str, **headers: str) -> tuple[int, dict[str, object]]:
    context = ssl.create_default_context(cadata=api.server.ca_pem)
    async with (
        aiohttp.ClientSession() as session,
        session.get(api.server.url + path, headers=headers, ssl=context) as response,
    ):
        return response.status, await response.json()


async def test_without_the_right_token_nothing_is_told(api: RunningApi) -> None:
    for authorization in ("", "Bearer wrong", "Basic x", f"Bearer {api.server.token}x", "\udcff"):
        status, body = await request(api, "/api/v1/pods", Authorization=authorization)
        assert (status, body["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize("host", ["example.com", "evil.localhost.example", "10.0.0.1:443", ""])
async def test_a_foreign_host_is_turned_away(api: RunningApi, host: str) -> None:
    status, body = await request(
        api, "/api/v1/pods", Host=host, Authorization=f"Bearer {api.server.token}"
    )
    assert (status, body["reason"]) == (421, "Misdirected")


async def test_impersonation_is_refused(api: RunningApi) -> None:
    headers = {"Authorization": f"Bearer {api.server.token}", "Impersonate-User": "bob"}
    status, _ = await request(api, "/api/v1/pods", **headers)
    assert status == 403


async def test_a_client_that_does_not_know_the_authority_is_warned(api: RunningApi) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        async with aiohttp.ClientSession() as session:
            await session.get(api.server.url + "/version")


async def test_a_body_that_is_too_large_is_refused(api: RunningApi) -> None:
    context = ssl.create_default_context(cadata=api.server.ca_pem)
    headers = {"Authorization": f"Bearer {api.server.token}"}
    url = f"{api.server.url}/api/v1/namespaces/default/configmaps"
    body = io.BytesIO(b"x" * (4 << 20))
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers, ssl=context) as response,
    ):
        assert response.status == 413
        assert (await response.json())["reason"] == "RequestEntityTooLarge"


def test_the_kubeconfig_is_its_owners_alone(api: RunningApi) -> None:
    assert os.stat(api.kubeconfig).st_mode & 0o777 == 0o600
