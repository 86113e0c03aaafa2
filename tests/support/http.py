"""Requests to a running server, and their answers as plain values."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from octavo_wire import metrics as names
from support.serving import MODEL, RAW_PROMPT_END, RunningServer


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def raw_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": text + RAW_PROMPT_END, **fields}


def stream(server: RunningServer, path: str, body: dict[str, Any]) -> list[str]:
    """The data of every event of an answer."""
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        text = "".join(response.iter_text())
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]


def chunks(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    events = stream(server, path, body)
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def chat_text(parts: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content", "") for part in parts for c in part["choices"])


def wait_for(condition: Callable[[], bool], within_s: float = 5) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.01)


def is_idle(server: RunningServer) -> bool:
    gauges = (names.NUM_REQUESTS_RUNNING, names.NUM_REQUESTS_WAITING, names.KV_CACHE_USAGE)
    return all(server.metric(name) == 0 for name in gauges)
