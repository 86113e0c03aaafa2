"""Requests of the OpenAI API as they come over the wire, checked field by field.

Rules that hold for every field: what this version cannot do is an error that names the field,
unless its value asks for nothing (`best_of: 1`, `store: false`, `functions: []`, null). A field
nobody knows is an error too. `user`, `metadata` and `safety_identifier` are taken and have no
effect: they describe the caller and not the answer.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
from pydantic import Field, StringConstraints

from octavo_engine.errors import InvalidRequest
from octavo_engine.serving.messages import LISTED, ChatMessage, Strict, Tool

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 512
MAX_PROMPTS: Final = 64
MAX_CHOICES: Final = 128  # sequences of one request: prompts × n
MAX_LOGPROBS: Final = 20
MAX_BIASES: Final = 1024
MAX_MESSAGES: Final = 4096
_NAMED_PROBLEMS: Final = 3

_Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]

_Bias = Annotated[float, Field(ge=-100, le=100)]

# Fields of OpenAI's and vLLM's API that this version does not serve, with the values that ask for
# nothing. Null always does.
_UNSUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "suffix": (),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class GenerationRequest(Strict):
    """What both ways to ask for text have in common."""

    model: str
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)  # -1 and 0: off
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64, fail_fast=True)] | None = None
    logit_bias: Annotated[dict[str, _Bias], Field(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    # Taken, without effect.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def num_logprobs(self) -> int | None:
        """None: none are asked for. k: of each token, and of the k likeliest in its place."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs


class ChatRequest(GenerationRequest):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool = True
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Raise InvalidRequest for fields that do not go together."""
        for index, message in enumerate(self.messages):
            message.check(f"messages.{index}")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "top_logprobs has a meaning only with logprobs: true", param="top_logprobs"
            )
        if self.tools and self.tool_choice != "none":
            raise InvalidRequest(
                "This version does not read tool calls out of answers, so it cannot let a model "
                'choose tools. With tool_choice: "none" the tools are shown to the model, and '
                "its answer is plain text",
                param="tool_choice",
            )
        if self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequest(
                'tool_choice can be "none", or "auto" without tools: this version does not '
                "read tool calls out of answers",
                param="tool_choice",
            )


class CompletionRequest(GenerationRequest):
    prompt: (
        str
        | Annotated[list[str], LISTED]
        | Annotated[list[int], LISTED]
        | Annotated[list[Annotated[list[int], LISTED]], LISTED]
    )
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((number for number in asked if number is not None), default=None)

    def check(self) -> None:
        """Raise InvalidRequest for more sequences than one request may have."""
        if len(self.prompts) * self.n > MAX_CHOICES:
            raise InvalidRequest(
                f"{len(self.prompts)} prompts with {self.n} answers each are more than the "
                f"{MAX_CHOICES} that one request may have",
                param="n",
            )

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per choice. Raises InvalidRequest when there is none, or too many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt is an empty list: give a text or tokens", param="prompt")
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        if len(self.prompt) > MAX_PROMPTS:
            raise InvalidRequest(
                f"prompt holds {len(self.prompt)} prompts; one request may hold {MAX_PROMPTS}",
                param="prompt",
            )
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class TokenizeRequest(Strict):
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], LISTED] | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Give either prompt or messages", param="prompt")
        for index, message in enumerate(self.messages or []):
            message.check(f"messages.{index}")


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]


_Request = TypeVar("_Request", bound=Strict)


def parse_request(kind: type[_Request], body: bytes) -> _Request:
    """A request from its JSON. Raises InvalidRequest that names the first field at fault."""
    try:
        raw = pydantic.TypeAdapter(dict[str, Any]).validate_json(body)
    except pydantic.ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidRequest(f"The body is no JSON object: {detail}") from None
    # A field that is null is a field left out, as OpenAI has it.
    fields = {key: value for key, value in raw.items() if not _asks_for_nothing(key, value)}
    known = kind.model_fields
    for key in fields:
        if key in _UNSUPPORTED:
            raise InvalidRequest(
                f"{key} is not supported by this version of Octavo; leave it out", param=key
            )
        if key not in known:
            raise InvalidRequest(f"There is no field {key[:64]!r} in this request", param=key[:64])
    try:
        request = kind.model_validate(fields, strict=True)
    except pydantic.ValidationError as error:
        raise _named(error) from None
    request.check()
    if (
        isinstance(request, GenerationRequest)
        and request.stream_options is not None
        and not request.stream
    ):
        raise InvalidRequest(
            "stream_options has a meaning only with stream: true", param="stream_options"
        )
    return request


def _asks_for_nothing(key: str, value: Any) -> bool:
    neutral = _UNSUPPORTED.get(key, ())
    return value is None or any(type(value) is type(one) and value == one for one in neutral)


def _named(error: pydantic.ValidationError) -> InvalidRequest:
    """OpenAI's shape names one field, so the first one; the message tells a few more."""
    problems = [
        # Locations of unions carry the names of types; a path is fields and positions only.
        ([str(part) for part in problem["loc"] if _is_field(part)], problem["msg"])
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    # Each member of a union complains; the one that looked deepest is the one that was meant.
    first = problems[0][0][:1]
    path, text = max((p for p in problems if p[0][:1] == first), key=lambda p: len(p[0]))
    others = [problem for problem in problems if problem[0][:1] != first]
    told = [f"{'.'.join(where)}: {what}" for where, what in [(path, text), *others]]
    return InvalidRequest("; ".join(told[:_NAMED_PROBLEMS]), param=".".join(path) or None)


def _is_field(part: int | str) -> bool:
    return isinstance(part, int) or (part.isidentifier() and part not in ("str", "int"))
