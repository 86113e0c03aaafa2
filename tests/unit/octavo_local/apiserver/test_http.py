"""The HTTP side on a real socket: logs, watches, paging, warnings; kubectl is not needed."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from octavo_local.apiserver.resources import CONFIG_MAPS, PODS, Object
from octavo_local.apiserver.server import ApiServer, NotLoopback, running_server
from octavo_local.apiserver.storage import Subscription
from octavo_local.apiserver.store import Store

CORE = "/api/v1/namespaces/default"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with running_server(Store()) as running:
        yield running


@pytest.fixture
async def session(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=server.ca_pem))
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(server.url, connector=connector, headers=headers) as found:
        yield found


async def get(session: aiohttp.ClientSession, path: str, **headers: str) -> Any:
    async with session.get(path, headers=headers) as response:
        return await response.json()


def config_map(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


class LinesOfLog:
    """A log source with three lines of one container."""

    def __init__(self) -> None:
        self.asked: dict[str, object] = {}

    async def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        previous: bool,
        tail_lines: int | None,
        since: float | None,
        timestamps: bool,
    ) -> AsyncIterator[bytes]:
        if previous:
            raise LookupError(container)
        self.asked = {"namespace": namespace, "pod": pod, "container": container, "follow": follow}
        self.asked |= {"since": since, "timestamps": timestamps}
        lines = [b"one\n", b"two\n", b"three\n"]
        return self._chunks(lines if tail_lines is None else lines[-tail_lines:])

    async def _chunks(self, lines: list[bytes]) -> AsyncIterator[bytes]:
        for line in lines:
            yield line


@pytest.fixture
def logs(server: ApiServer) -> LinesOfLog:
    source = LinesOfLog()
    server.log_source = source
    spec = {"nodeName": "here", "containers": [{"name": "main", "image": "web:1"}]}
    server.store.create(PODS, "default", {"metadata": {"name": "p"}, "spec": spec})
    return source


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "one\ntwo\nthree\n"),
        ("?tailLines=1", "three\n"),
        ("?limitBytes=5", "one\nt"),
        ("?container=main&follow=true", "one\ntwo\nthree\n"),
    ],
)
async def test_logs_come_from_the_source(
    session: aiohttp.ClientSession, logs: LinesOfLog, query: str, text: str
) -> None:
    async with session.get(f"{CORE}/pods/p/log{query}") as response:
        assert (response.status, await response.text()) == (200, text)
    assert logs.asked["container"] == "main"
    assert logs.asked["follow"] is ("follow" in query)


async def test_the_source_hears_since_when_and_whether_with_times(
    session: aiohttp.ClientSession, logs: LinesOfLog
) -> None:
    query = "?sinceTime=1970-01-01T00:01:00Z&timestamps=true"
    async with session.get(f"{CORE}/pods/p/log{query}") as response:
        assert response.status == 200
    assert (logs.asked["since"], logs.asked["timestamps"]) == (60.0, True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?container=other", "container other is not valid for pod p"),
        ("?previous=true", 'previous terminated container "main" in pod "p" not found'),
        ("?tailLines=x", "tailLines must be a number"),
        ("?stream=Stderr", "local mode does not offer stream"),
        ("?sinceTime=yesterday", "is no time"),
        ("?sinceTime=2026-01-01T00:00:00Z&sinceSeconds=1", "at most one"),
    ],
)
async def test_logs_that_cannot_be_had(
    session: aiohttp.ClientSession, logs: LinesOfLog, query: str, message: str
) -> None:
    status = await get(session, f"{CORE}/pods/p/log{query}")
    assert (status["code"], message in status["message"]) == (400, True), status


async def test_without_a_node_there_is_no_log(
    session: aiohttp.ClientSession, server: ApiServer, logs: LinesOfLog
) -> None:
    server.log_source = None
    assert (await get(session, f"{CORE}/pods/p/log"))["code"] == 404


async def test_lists_come_in_pages(session: aiohttp.ClientSession, server: ApiServer) -> None:
    for name in "abcde":
        server.store.create(CONFIG_MAPS, "default", config_map(name))
    names: list[str] = []
    token = ""
    while True:
        page = await get(session, f"{CORE}/configmaps?limit=2&continue={token}")
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] == 5 - len(names)
    assert names == list("abcde")


async def test_metadata_alone_on_request(session: aiohttp.ClientSession, server: ApiServer) -> None:
    server.store.create(CONFIG_MAPS, "default", {**config_map("a"), "data": {"k": "v"}})
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    page = await get(session, f"{CORE}/configmaps", Accept=accept)
    assert page["kind"] == "PartialObjectMetadataList"
    assert [sorted(item) for item in page["items"]] == [["apiVersion", "kind", "metadata"]]


async def events(session: aiohttp.ClientSession, query: str, count: int) -> list[Any]:
    found: list[Any] = []
    async with session.get(f"{CORE}/configmaps?watch=1&{query}") as response:
        async for line in response.content:
            found.append(json.loads(line))
            if len(found) == count:
                break
    return found


async def test_a_watch_with_a_selector_sees_objects_come_into_it_and_leave_it(
    session: aiohttp.ClientSession, server: ApiServer
) -> None:
    store = server.store
    start = store.storage.version
    store.create(CONFIG_MAPS, "default", config_map("a", app="other"))
    store.update(CONFIG_MAPS, "default", "a", config_map("a", app="web"))
    store.update(CONFIG_MAPS, "default", "a", config_map("a", app="web", more="x"))
    store.update(CONFIG_MAPS, "default", "a", config_map("a", app="other"))
    seen = await events(session, f"labelSelector=app%3Dweb&resourceVersion={start}", 3)
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_streaming_list_ends_with_a_bookmark(
    session: aiohttp.ClientSession, server: ApiServer
) -> None:
    server.store.create(CONFIG_MAPS, "default", config_map("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    added, bookmark = await events(session, query, 2)
    assert added["type"] == "ADDED"
    assert bookmark["type"] == "BOOKMARK"
    metadata = bookmark["object"]["metadata"]
    assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert metadata["resourceVersion"] == str(server.store.storage.version)


async def test_a_version_of_another_life_has_expired(session: aiohttp.ClientSession) -> None:
    status = await get(session, f"{CORE}/configmaps?watch=1&resourceVersion=999999")
    assert (status["code"], status["reason"]) == (410, "Expired")


async def test_a_watch_ends_when_its_time_is_up(session: aiohttp.ClientSession) -> None:
    async with session.get(f"{CORE}/configmaps?watch=1&timeoutSeconds=1") as response:
        assert await asyncio.wait_for(response.read(), 5) == b""


async def test_a_watch_that_lags_too_far_behind_ends_with_a_410(
    session: aiohttp.ClientSession, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_local.apiserver.watch.MAX_LAG", 1)
    async with session.get(f"{CORE}/configmaps?watch=1") as response:
        for name in "ab":  # at once, before the server can write the first
            server.store.create(CONFIG_MAPS, "default", config_map(name))
        seen = [json.loads(line) async for line in response.content]
    assert [event["type"] for event in seen] == ["ADDED", "ERROR"]
    assert seen[1]["object"]["code"] == 410


async def test_a_client_that_leaves_is_forgotten(
    session: aiohttp.ClientSession, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, forgotten = server.store.storage, asyncio.Event()
    unsubscribe = storage.unsubscribe

    def forget(subscription: Subscription) -> None:
        unsubscribe(subscription)
        forgotten.set()

    monkeypatch.setattr(storage, "unsubscribe", forget)
    async with session.get(f"{CORE}/configmaps?watch=1") as response:
        assert response.status == 200
        assert not forgotten.is_set()
        response.close()
    async with asyncio.timeout(30):
        await forgotten.wait()


async def test_the_server_stops_although_somebody_watches() -> None:
    # Its own end would come after half an hour.
    async with asyncio.timeout(60), running_server(Store()) as server:
        context = ssl.create_default_context(cadata=server.ca_pem)
        headers = {"Authorization": f"Bearer {server.token}"}
        session = aiohttp.ClientSession(
            server.url, connector=aiohttp.TCPConnector(ssl=context), headers=headers
        )
        response = await session.get(f"{CORE}/configmaps?watch=1")
        assert response.status == 200
    response.close()
    await session.close()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/nothing", 404),
        ("/apis/none.example.com", 404),
        ("/apis/apps/v2", 404),
        ("/openapi/v3/apis/none/v1", 404),
        (f"{CORE}/configmaps/a/status", 404),
        (f"{CORE}/configmaps/missing", 404),
        (f"{CORE}/configmaps?labelSelector=a=b=c", 400),
        (f"{CORE}/configmaps?limit=x", 400),
        ("/nothing", 404),
    ],
)
async def test_wrong_paths_and_queries(
    session: aiohttp.ClientSession, path: str, code: int
) -> None:
    status = await get(session, path)
    assert (status["kind"], status["code"]) == ("Status", code)


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", "{", 400),
        ("application/json", "[]", 422),
        ("application/json", '{"metadata": {"name": "a"}, "data": {"k": NaN}}', 400),
        ("application/yaml", "a: [", 400),
        ("application/yaml", "metadata: &m {name: a}\ndata: *m", 400),
        ("application/json", "[" * 100_000, 400),
        ("text/plain", "x", 415),
        ("application/yaml", "metadata: {name: good}", 201),
    ],
)
async def test_bodies(
    session: aiohttp.ClientSession, content_type: str, body: str, code: int
) -> None:
    headers = {"Content-Type": content_type}
    async with session.post(f"{CORE}/configmaps", data=body, headers=headers) as response:
        assert response.status == code


async def test_unknown_fields_are_a_warning_by_default(session: aiohttp.ClientSession) -> None:
    body = {"metadata": {"name": "a"}, "dat": {}}
    async with session.post(f"{CORE}/configmaps", json=body) as response:
        assert response.status == 201
        assert response.headers["Warning"] == '299 - "unknown field \\"dat\\""'


async def test_events_have_two_faces(session: aiohttp.ClientSession) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "it started",
        "reason": "Started",
        "type": "Normal",
        "reportingController": "tester",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    async with session.post(f"{path}?fieldValidation=Strict", json=event) as response:
        assert response.status == 201
        assert (await response.json())["note"] == "it started"
    core = await get(session, f"{CORE}/events/e")
    assert (core["message"], core["involvedObject"]["name"]) == ("it started", "p")
    assert (await get(session, f"{path}/e"))["regarding"]["name"] == "p"


async def test_every_document_of_the_index_can_be_read(session: aiohttp.ClientSession) -> None:
    index = await get(session, "/openapi/v3")
    for entry in index["paths"].values():
        document = await get(session, entry["serverRelativeURL"])
        text = json.dumps(document)
        assert "$defs" not in text
        assert document["paths"]


async def test_only_loopback_is_served() -> None:
    with pytest.raises(NotLoopback, match="choose one such as"):
        async with running_server(Store(), host="0.0.0.0"):
            pass
