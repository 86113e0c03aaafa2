"""One streamed chat answer over the OpenAI API, with its figures."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

_MAX_TOKENS: Final = 96
_DATA: Final = "data: "


class ChatError(Exception):
    """The service did not answer as it should; the message says how it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStats:
    num_tokens: int
    first_token_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """The rate of decoding: the tokens after the first over the time after the first."""
        decoding_s = self.total_s - self.first_token_s
        return (self.num_tokens - 1) / decoding_s if self.num_tokens > 1 and decoding_s else 0.0


async def stream_chat(
    url: str, *, model: str, prompt: str, write: Callable[[str], None]
) -> ChatStats:
    """Ask once and hand the answer's pieces to `write` as they come; raises ChatError."""
    request = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    first_at, num_tokens = None, 0
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=request) as answer,
        ):
            if answer.status != 200:
                raise ChatError(f"{url} answered {answer.status}: {(await answer.text())[:500]}")
            async for raw in answer.content:
                event = _event(raw.decode())
                if event is None:
                    continue
                if "error" in event:
                    raise ChatError(f"the stream broke off: {event['error'].get('message')}")
                for choice in event.get("choices") or ():
                    if text := (choice.get("delta") or {}).get("content"):
                        first_at = first_at or loop.time()
                        write(text)
                if usage := event.get("usage"):
                    num_tokens = int(usage["completion_tokens"])
    except aiohttp.ClientError as error:
        raise ChatError(f"no answer from {url}: {error}") from error
    if first_at is None:
        raise ChatError(f"{url} answered with no text at all")
    return ChatStats(
        num_tokens=num_tokens,
        first_token_s=first_at - started_at,
        total_s=loop.time() - started_at,
    )


def _event(line: str) -> dict[str, Any] | None:
    """The JSON of one line of a server-sent event stream; None for other lines and the end."""
    text = line.strip()
    if not text.startswith(_DATA) or text == f"{_DATA}[DONE]":
        return None
    return dict(json.loads(text.removeprefix(_DATA)))
