"""Answers in the shapes of the OpenAI API, streamed and whole, from the same deltas."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from octavo_engine.core.request import FinishReason, RequestSpec
from octavo_engine.errors import OctavoError
from octavo_engine.serving.async_engine import AsyncEngine, OpenRequest
from octavo_engine.serving.errors import GenerationFailed, error_payload
from octavo_engine.serving.sse import DONE, frame
from octavo_engine.serving.text import TextAssembler, TextDelta


class Shape(Protocol):
    """How one of the two APIs writes choices down."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> dict[str, Any] | None: ...

    def chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, finish_reason: str) -> dict[str, Any]: ...


class ChatShape:
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role is told once, before any text."""
        return self._choice(index, {"role": "assistant", "content": ""}, None)

    def chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return self._choice(index, {"content": text} if text else {}, finish_reason)

    def whole(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
        }

    def _choice(
        self, index: int, delta: dict[str, Any], finish_reason: str | None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


class CompletionShape:
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}

    def whole(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        return self.chunk(index, text, finish_reason)


CHAT: Final[Shape] = ChatShape()
COMPLETION: Final[Shape] = CompletionShape()


@dataclass(slots=True, kw_only=True)
class Choice:
    """One sequence of an answer: what the engine is asked, and how its text is made."""

    spec: RequestSpec
    text: TextAssembler


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


class Answer:
    """The answer to one HTTP request: some choices that are generated side by side."""

    def __init__(
        self,
        engine: AsyncEngine,
        choices: Sequence[Choice],
        *,
        shape: Shape,
        model_name: str,
        include_usage: bool = False,
    ) -> None:
        self._engine = engine
        self._choices = choices
        self._shape = shape
        self._model_name = model_name
        self._include_usage = include_usage
        self._id = shape.id_prefix + uuid.uuid4().hex
        self._created = int(time.time())
        self._open: list[OpenRequest] = []

    async def admit(self) -> None:
        """Bring every choice into the engine, or none. Raises RequestError or EngineDied."""
        try:
            self._open += [self._engine.open(choice.spec) for choice in self._choices]
            for request in self._open:
                await request.admitted()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for request in self._open:
            request.close()

    async def whole(self) -> dict[str, Any]:
        """The body of a plain answer. Raises GenerationFailed or EngineDied."""
        texts: list[list[str]] = [[] for _ in self._choices]
        reasons: dict[int, str] = {}
        async with contextlib.aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                texts[index].append(delta.text)
                if delta.finish_reason is not None:
                    reasons[index] = delta.finish_reason.value
        choices = [
            self._shape.whole(index, "".join(pieces), reasons[index])
            for index, pieces in enumerate(texts)
        ]
        return {**self._head(self._shape.whole_object), "choices": choices, "usage": self._usage()}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The same answer as server-sent events; what goes wrong on the way is told in one."""
        try:
            for index in range(len(self._choices)):
                if (opening := self._shape.opening(index)) is not None:
                    yield self._chunk([opening])
            async with contextlib.aclosing(self._deltas()) as deltas:
                async for index, delta in deltas:
                    if delta.text:
                        yield self._chunk([self._shape.chunk(index, delta.text, None)])
                    if delta.finish_reason is not None:
                        reason = delta.finish_reason.value
                        yield self._chunk([self._shape.chunk(index, "", reason)])
            if self._include_usage:
                yield self._chunk([], usage=self._usage())
            yield DONE
        except OctavoError as error:
            yield frame(error_payload(error))
        finally:
            self.close()

    async def _deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Deltas of all choices in the order in which they come."""
        merged: asyncio.Queue[tuple[int, TextDelta] | _Failed] = asyncio.Queue()
        try:
            if len(self._choices) == 1:  # no need for tasks and a second queue
                async with contextlib.aclosing(self._deltas_of(0)) as deltas:
                    async for delta in deltas:
                        yield 0, delta
                return
            tasks = [
                asyncio.create_task(self._pump(index, merged))
                for index in range(len(self._choices))
            ]
            try:
                unfinished = len(tasks)
                while unfinished:
                    item = await merged.get()
                    if isinstance(item, _Failed):
                        raise item.error
                    unfinished -= item[1].finish_reason is not None
                    yield item
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.close()

    async def _pump(
        self, index: int, merged: asyncio.Queue[tuple[int, TextDelta] | _Failed]
    ) -> None:
        try:
            async with contextlib.aclosing(self._deltas_of(index)) as deltas:
                async for delta in deltas:
                    merged.put_nowait((index, delta))
        except Exception as error:
            merged.put_nowait(_Failed(error))

    async def _deltas_of(self, index: int) -> AsyncGenerator[TextDelta, None]:
        """Raises GenerationFailed when the engine gave the choice up."""
        request, assembler = self._open[index], self._choices[index].text
        async for update in request.updates():
            delta = assembler.push(update)
            if delta.finish_reason is FinishReason.ERROR:
                raise GenerationFailed(delta.error or "the engine gave up on this request")
            if delta.finish_reason is FinishReason.ABORT:
                raise GenerationFailed("the engine is shutting down")
            if delta.finish_reason is not None:
                request.close(delta.finish_reason)
                yield delta
                return
            yield delta

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model_name,
        }

    def _chunk(
        self, choices: list[dict[str, Any]], *, usage: dict[str, Any] | None = None
    ) -> bytes:
        payload = {**self._head(self._shape.chunk_object), "choices": choices}
        if self._include_usage:
            payload["usage"] = usage
        return frame(payload)

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(choice.spec.prompt_token_ids) for choice in self._choices)
        completion = sum(choice.text.num_tokens for choice in self._choices)
        cached = sum(choice.text.num_cached_tokens for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
