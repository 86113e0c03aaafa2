"""How the chat API and the completions API write the choices of an answer down."""

from collections.abc import Sequence
from typing import Any, Protocol

from octavo_engine.serving.logprobs import (
    PlacedToken,
    chat_logprobs,
    completion_logprobs,
)
from octavo_engine.serving.tokenizer import Tokenizer


class Shape(Protocol):
    """One of the two APIs. Tokens are those whose log-probabilities are to be told."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> dict[str, Any] | None: ...

    def chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        tokens: Sequence[PlacedToken] = (),
    ) -> dict[str, Any]: ...

    def whole(
        self, index: int, text: str, finish_reason: str, tokens: Sequence[PlacedToken] = ()
    ) -> dict[str, Any]: ...


class ChatShape:
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, num_logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role is told once, before any text."""
        return self._choice(index, {"role": "assistant", "content": ""}, None)

    def chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        tokens: Sequence[PlacedToken] = (),
    ) -> dict[str, Any]:
        logprobs = self._logprobs(tokens) if tokens else None
        return self._choice(index, {"content": text} if text else {}, finish_reason, logprobs)

    def whole(
        self, index: int, text: str, finish_reason: str, tokens: Sequence[PlacedToken] = ()
    ) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish_reason,
        }

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        return chat_logprobs(tokens, self._tokenizer, num_top=self._num_logprobs)

    def _choice(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }


class CompletionShape:
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, num_logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        tokens: Sequence[PlacedToken] = (),
    ) -> dict[str, Any]:
        return self._choice(index, text, finish_reason, self._logprobs(tokens) if tokens else None)

    def whole(
        self, index: int, text: str, finish_reason: str, tokens: Sequence[PlacedToken] = ()
    ) -> dict[str, Any]:
        return self._choice(index, text, finish_reason, self._logprobs(tokens))

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        return completion_logprobs(tokens, self._tokenizer, num_top=self._num_logprobs)

    def _choice(
        self, index: int, text: str, finish_reason: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
