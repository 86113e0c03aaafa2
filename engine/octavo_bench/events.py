"""Server-sent events from bytes, and what a chunk of the OpenAI API says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DONE: Final = b"[DONE]"


class EventSplitter:
    """Cuts a stream into the data of its events, however the network cuts it into pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that are complete now; comments and other fields are left out."""
        text = self._rest + piece
        if b"\r" in text:
            # A lone \r at the end may be half of a \r\n that comes with the next piece.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n") + held
        *events, self._rest = text.split(b"\n\n")
        return [data for event in events if (data := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one event, or one whole answer, brings."""

    has_text: bool
    finish_reason: str | None
    usage: Usage | None
    error: str | None


def parse_chunk(data: bytes) -> Chunk:
    """Read a chunk or a whole answer of either API. Raises ValueError for what is neither."""
    payload = json.loads(data)
    if not isinstance(payload, dict):
        raise ValueError("a chunk is an object")
    if payload.get("error"):
        error = payload["error"]
        message = error.get("message") if isinstance(error, dict) else error
        return Chunk(has_text=False, finish_reason=None, usage=None, error=str(message))
    choices = payload.get("choices") or []
    return Chunk(
        has_text=any(_has_text(choice) for choice in choices),
        finish_reason=next((c["finish_reason"] for c in choices if c.get("finish_reason")), None),
        usage=_usage(payload.get("usage")),
        error=None,
    )


def _has_text(choice: Mapping[str, Any]) -> bool:
    part = choice.get("delta") or choice.get("message") or choice
    return bool(part.get("content") or part.get("text") or part.get("reasoning_content"))


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(usage["prompt_tokens"]),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=details.get("cached_tokens"),
    )
