"""From a checked request to what the scheduler and the runner must know."""

import dataclasses
from collections.abc import Iterator
from typing import Final, TypeVar

from octavo_engine.config import ModelDescription
from octavo_engine.core.messages import SamplingParams
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.serving.protocol import ChatRequest, GenerationRequest

# OpenAI's default for completions; a chat goes on to the end of the context.
DEFAULT_COMPLETION_TOKENS: Final = 16
_Number = TypeVar("_Number", int, float)
_SEEDS: Final = 2**64


def make_sampling(
    request: GenerationRequest,
    model: ModelDescription,
    *,
    num_prompt_tokens: int,
    prompt_field: str,
    max_tokens_policy: str = "reject",
) -> SamplingParams:
    """Sampling of the first sequence for a prompt; see `for_sibling`.

    An explicit max_tokens that does not fit behind the prompt is refused, as OpenAI does, or cut
    to what fits, by the policy; a default is cut in any case. A prompt that leaves no room for one
    token is always refused. Raises ContextTooLong or InvalidRequest.
    """
    room = _room(model.max_model_len, num_prompt_tokens, prompt_field)
    field, asked = _asked_max_tokens(request)
    if asked is None:
        default = room if isinstance(request, ChatRequest) else DEFAULT_COMPLETION_TOKENS
        max_tokens = min(default, room)
    elif asked <= room or max_tokens_policy == "clamp":
        max_tokens = min(asked, room)
    else:
        raise ContextTooLong(
            f"This model's maximum context length is {model.max_model_len} tokens. However, you "
            f"requested {num_prompt_tokens + asked} tokens ({num_prompt_tokens} in the "
            f"{prompt_field}, {asked} in the completion). Please reduce the length of the "
            f"{prompt_field} or {field}.",
            param=field,
        )
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}, more than the {max_tokens} tokens of max_tokens",
            param="min_tokens",
        )
    asked_stops = frozenset(
        _checked_id(token_id, model, "stop_token_ids") for token_id in request.stop_token_ids or ()
    )
    eos = frozenset() if request.ignore_eos else model.tokenizer.eos_token_ids
    stop_token_ids = asked_stops | eos
    allowed = None
    if request.allowed_token_ids is not None:
        allowed = frozenset(
            _checked_id(token_id, model, "allowed_token_ids")
            for token_id in request.allowed_token_ids
        )
        if min_tokens and allowed <= stop_token_ids:
            raise InvalidRequest(
                "allowed_token_ids holds only tokens that end the answer, and min_tokens forbids "
                "these at first, so there would be none to choose from",
                param="allowed_token_ids",
            )
    top_k = max(_or(request.top_k, 0), 0)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=0 if top_k >= model.vocab_size else top_k,
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        seed=request.seed,
        stop_token_ids=stop_token_ids,
        suppress_until_min_tokens=stop_token_ids if min_tokens else frozenset(),
        logit_bias=tuple(_parse_bias(request, model)),
        allowed_token_ids=allowed,
        num_logprobs=request.num_logprobs,
        num_prompt_logprobs=request.num_prompt_logprobs,
    )


def for_sibling(sampling: SamplingParams, index: int) -> SamplingParams:
    """Sampling of the choice `index` for the same prompt: seeds count up, so draws differ."""
    if sampling.seed is None or index == 0:
        return sampling
    seed = (sampling.seed + index + _SEEDS // 2) % _SEEDS - _SEEDS // 2
    return dataclasses.replace(sampling, seed=seed)


def _checked_id(token_id: int, model: ModelDescription, field: str) -> int:
    if not 0 <= token_id < model.vocab_size:
        raise InvalidRequest(
            f"{field} holds {token_id}; tokens are 0 to {model.vocab_size - 1}", param=field
        )
    return token_id


def _parse_bias(request: GenerationRequest, model: ModelDescription) -> Iterator[tuple[int, float]]:
    for key, bias in (request.logit_bias or {}).items():
        # Plain digits only, so that no two keys name the same token.
        if not (key.isascii() and key.isdigit() and str(int(key[:20])) == key):
            raise InvalidRequest(
                f"logit_bias holds {key[:64]!r}, which is no token's number", param="logit_bias"
            )
        yield _checked_id(int(key), model, "logit_bias"), bias


def _room(max_model_len: int, num_prompt_tokens: int, prompt_field: str) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextTooLong(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"{prompt_field} resulted in {num_prompt_tokens} tokens, which leaves no room for an "
            f"answer. Please reduce the length of the {prompt_field}.",
            param=prompt_field,
        )
    return room


def _asked_max_tokens(request: GenerationRequest) -> tuple[str, int | None]:
    """The field that sets the limit, and the limit."""
    asked = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        if asked not in (None, request.max_completion_tokens):
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ; give one of them",
                param="max_completion_tokens",
            )
        return "max_completion_tokens", request.max_completion_tokens
    return "max_tokens", asked


def _or(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
