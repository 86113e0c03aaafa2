"""The bodies of answers as types, for the OpenAPI document. Tests hold real answers against it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length"]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Body):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(_Body):
    error: ErrorDetail


class PromptTokensDetails(_Body):
    cached_tokens: int


class Usage(_Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptCandidate(_Body):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptCandidate] | None]


class TopLogprob(_Body):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Body):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatAnswerMessage(_Body):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Body):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    prompt_logprobs: PromptLogprobs = []


class ChatAnswer(_Body):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(_Body):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Body):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    prompt_logprobs: PromptLogprobs = []


class CompletionAnswer(_Body):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Model(_Body):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(_Body):
    object: Literal["list"]
    data: list[Model]


class Tokens(_Body):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(_Body):
    prompt: str


class Version(_Body):
    version: str


class Health(BaseModel):
    status: Literal["alive", "loading", "ready", "leaving", "draining", "dead"]
    model: str = ""
    loading: dict[str, Any] = {}
    seconds: float = 0.0
