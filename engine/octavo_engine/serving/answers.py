"""Answers in the shapes of the OpenAI API, streamed and whole, from the same deltas."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_engine.core.request import FinishReason, RequestSpec
from octavo_engine.errors import OctavoError
from octavo_engine.serving.async_engine import AsyncEngine, OpenRequest
from octavo_engine.serving.errors import DeadlineExceeded, GenerationFailed, error_payload
from octavo_engine.serving.logprobs import PlacedToken
from octavo_engine.serving.shapes import Shape
from octavo_engine.serving.sse import DONE, ChunkFramer, frame
from octavo_engine.serving.text import TextAssembler, TextDelta

RenderPromptLogprobs = Callable[[TextAssembler], Any]


@dataclass(slots=True, kw_only=True)
class Choice:
    """One sequence of an answer: what the engine is asked, and how its text is made."""

    spec: RequestSpec
    text: TextAssembler
    is_sibling: bool = False  # a further choice for the prompt of another one


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
        render_prompt_logprobs: RenderPromptLogprobs | None = None,
    ) -> None:
        """`render_prompt_logprobs`: what each choice tells of its prompt, if it is asked to."""
        self._engine = engine
        self._choices = choices
        self._shape = shape
        self._model_name = model_name
        self._include_usage = include_usage
        self._render_prompt_logprobs = render_prompt_logprobs
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
        """The body of a plain answer. Raises GenerationFailed, DeadlineExceeded or EngineDied."""
        texts: list[list[str]] = [[] for _ in self._choices]
        tokens: list[list[PlacedToken]] = [[] for _ in self._choices]
        reasons: dict[int, str] = {}
        async with contextlib.aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                texts[index].append(delta.text)
                tokens[index] += delta.tokens
                if delta.finish_reason is not None:
                    reasons[index] = delta.finish_reason.value
        choices = [
            self._shape.whole(index, "".join(pieces), reasons[index], tokens[index])
            | self._about_prompt(index)
            for index, pieces in enumerate(texts)
        ]
        return {**self._head(self._shape.whole_object), "choices": choices, "usage": self._usage()}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The same answer as server-sent events; what goes wrong on the way is told in one."""
        framer = ChunkFramer(self._head(self._shape.chunk_object))
        tail = {"usage": None} if self._include_usage else {}
        silent = set(range(len(self._choices)))  # those of which nothing was told yet
        try:
            for index in range(len(self._choices)):
                if (opening := self._shape.opening(index)) is not None:
                    yield framer.frame([opening], tail)
            async with contextlib.aclosing(self._deltas()) as deltas:
                async for index, delta in deltas:
                    if delta.says_something:
                        chunk = self._shape.chunk(index, delta.text, None, delta.tokens)
                        if index in silent:
                            chunk |= self._about_prompt(index)
                            silent.remove(index)
                        yield framer.frame([chunk], tail)
                    if delta.finish_reason is not None:
                        chunk = self._shape.chunk(index, "", delta.finish_reason.value)
                        if index in silent:
                            chunk |= self._about_prompt(index)
                        yield framer.frame([chunk], tail)
            if self._include_usage:
                yield framer.frame([], {"usage": self._usage()})
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
            if delta.timed_out and not any(choice.text.num_tokens for choice in self._choices):
                raise DeadlineExceeded("The time for this request was up before it had a token")
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

    def _about_prompt(self, index: int) -> dict[str, Any]:
        if self._render_prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": self._render_prompt_logprobs(self._choices[index].text)}

    def _usage(self) -> dict[str, Any]:
        """Each prompt counts once, however many answers it has."""
        first = [choice for choice in self._choices if not choice.is_sibling]
        prompt = sum(len(choice.spec.prompt_token_ids) for choice in first)
        completion = sum(choice.text.num_tokens for choice in self._choices)
        cached = sum(choice.text.num_cached_tokens for choice in first)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
