"""Requests of the OpenAI API as they come over the wire, checked field by field.

Rules that hold for every field: what this version cannot do is an error that names the field,
unless its value asks for nothing (`n: 1`, `logprobs: false`, `tools: []`, null). A field nobody
knows is an error too. `user`, `metadata` and `safety_identifier` are taken and have no effect:
they describe the caller and not the answer.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from octavo_engine.errors import InvalidRequest

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 512
MAX_PROMPTS: Final = 64
MAX_MESSAGES: Final = 4096
_NAMED_PROBLEMS: Final = 3

# To name one wrong item is enough; a list of a million of them is not looked through.
_Listed = Field(fail_fast=True)
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]

# Fields of OpenAI's and vLLM's API that this version does not serve, with the values that ask for
# nothing. Null always does.
_UNSUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
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
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class GenerationRequest(_Strict):
    """What both ways to ask for text have in common."""

    model: str
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


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    # A template puts the role into its markup, so a role of the caller's own could become markup.
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], _Listed]
    name: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        """An answer of ours says `refusal: null`, and clients send it back as it came."""
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None}

    def for_template(self) -> dict[str, Any]:
        """Parts are joined: templates of text models read `content` as one string."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        fields = {"role": self.role, "content": text}
        return fields if self.name is None else {**fields, "name": self.name}


class ChatRequest(GenerationRequest):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool = True


class CompletionRequest(GenerationRequest):
    prompt: (
        str
        | Annotated[list[str], _Listed]
        | Annotated[list[int], _Listed]
        | Annotated[list[Annotated[list[int], _Listed]], _Listed]
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


class TokenizeRequest(_Strict):
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], _Listed] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


_Request = TypeVar("_Request", bound=_Strict)


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
                f"{key} is not supported by this version of Octavo"
                + (f" with any other value than {_UNSUPPORTED[key][0]!r}" if key == "n" else "")
                + "; leave it out",
                param=key,
            )
        if key not in known:
            raise InvalidRequest(f"There is no field {key[:64]!r} in this request", param=key[:64])
    try:
        request = kind.model_validate(fields, strict=True)
    except pydantic.ValidationError as error:
        raise _named(error) from None
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
