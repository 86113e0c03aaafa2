"""Every way in which a request can fail is counted as its kind, against servers on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from octavo_bench.client import RequestShape, Server, open_session
from octavo_bench.errors import BenchError
from octavo_bench.workload import Job

SHAPE = RequestShape(
    endpoint="completions", stream=True, temperature=0.0, timeout_s=5.0, ignore_eos=True
)
JOB = Job(due_s=None, prompt_tokens=4, output_tokens=3)
TEXT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**routes: Handler) -> AsyncIterator[str]:
    """A server with routes by the last part of their path."""
    app = web.Application()
    paths = {"completions": "/v1/completions", "models": "/v1/models", "tokenize": "/tokenize"}
    for name, handler in routes.items():
        app.router.add_route("*", paths[name], handler)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def streaming(*pieces: bytes, cut: bool = False) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handle


def answering(payload: Any, *, status: int = 200) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(payload, status=status)

    return handle


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("it is cancelled before")


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (answering({"error": {"message": "full"}}, status=429), "http_429"),
        (answering({}, status=500), "http_500"),
        (streaming(TEXT, b'data: {"error": {"message": "broke"}}\n\n'), "error_event"),
        (streaming(TEXT), "disconnected"),
        (streaming(TEXT, cut=True), "disconnected"),
        (streaming(b"data: <html>\n\n"), "malformed"),
        (streaming(b'data: {"choices": 3}\n\n'), "malformed"),
        (never, "timeout"),
    ],
)
async def test_failures_are_counted_by_their_kind(handler: Handler, kind: str) -> None:
    shape = RequestShape(
        endpoint="completions", stream=True, temperature=0.0, timeout_s=0.3, ignore_eos=True
    )
    async with serving(completions=handler) as url, open_session(None) as session:
        record = await Server(session, url, shape=shape, model="m").send(JOB, "hi")
    assert record.failure == kind
    assert record.detail
    assert record.ended_s >= record.sent_s


async def test_nobody_listens() -> None:
    async with open_session(None) as session:
        record = await Server(session, "http://127.0.0.1:1", shape=SHAPE, model="m").send(JOB, "hi")
    assert record.failure == "connect"


async def test_a_stream_is_timed_by_its_chunks_with_text() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}\n\n'
    handler = streaming(TEXT, TEXT, END, usage, b"data: [DONE]\n\n")
    async with serving(completions=handler) as url, open_session(None) as session:
        record = await Server(session, url + "/v1/", shape=SHAPE, model="m").send(JOB, "hi")
    assert (record.failure, record.finish_reason) == (None, "length")
    assert len(record.token_times_s) == 2
    assert (record.prompt_tokens, record.completion_tokens) == (4, 2)


def a_server_that_refuses_ignore_eos(seen: list[dict[str, Any]]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append(body)
        if "ignore_eos" in body:
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        words = len(body["prompt"].split())
        usage = f'data: {{"choices": [], "usage": {{"prompt_tokens": {words + 1}}}}}\n\n'
        return await streaming(TEXT, END, usage.encode(), b"data: [DONE]\n\n")(request)

    return handle


async def test_a_plain_server_is_used_without_what_it_lacks() -> None:
    seen: list[dict[str, Any]] = []
    models = answering({"data": [{"id": "plain"}]})
    handler = a_server_that_refuses_ignore_eos(seen)
    async with serving(completions=handler, models=models) as url, open_session("key") as session:
        server = Server(session, url, shape=SHAPE)
        facts = await server.prepare()
        record = await server.send(JOB, "one two")
    assert (facts.model, facts.version, facts.ignores_eos) == ("plain", None, False)
    assert facts.prompt_lengths_by == "usage"
    assert (server.calibration.tokens_per_word, server.calibration.overhead_tokens) == (1.0, 1.0)
    assert record.failure is None
    assert seen[-1]["model"] == "plain"
    assert seen[-1]["max_tokens"] == 3


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (answering({"data": []}), "serves 0 models"),
        (answering({"data": [{"id": "a"}, {"id": "b"}]}), r"serves 2 models: .*a, b"),
        (answering({}, status=401), "--api-key-file or OCTAVO_BENCH_API_KEY"),
        (answering({"data": [{"id": "a"}]}), "failed a first request: http_404"),
    ],
)
async def test_what_keeps_a_run_from_starting_is_told(models: Handler, words: str) -> None:
    async with serving(models=models) as url, open_session(None) as session:
        with pytest.raises(BenchError, match=words):
            await Server(session, url, shape=SHAPE).prepare()


async def test_a_url_where_nobody_listens_is_told() -> None:
    async with open_session(None) as session:
        with pytest.raises(BenchError, match="does not answer"):
            await Server(session, "http://127.0.0.1:1", shape=SHAPE).prepare()
