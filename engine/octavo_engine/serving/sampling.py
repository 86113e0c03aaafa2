"""From a checked request to what the scheduler and the runner must know."""

from typing import Final, TypeVar

from octavo_engine.config import ModelDescription
from octavo_engine.core.messages import SamplingParams
from octavo_engine.errors import ContextTooLong, InvalidRequest
from octavo_engine.serving.protocol import ChatRequest, GenerationRequest

# OpenAI's default for completions; a chat goes on to the end of the context.
DEFAULT_COMPLETION_TOKENS: Final = 16
_Number = TypeVar("_Number", int, float)


def make_sampling(
    request: GenerationRequest,
    model: ModelDescription,
    *,
    num_prompt_tokens: int,
    prompt_field: str,
) -> SamplingParams:
    """Sampling of one sequence.

    An explicit max_tokens that does not fit behind the prompt is refused, as OpenAI does; a
    default is cut to what fits. Raises ContextTooLong or InvalidRequest.
    """
    max_tokens = _choose_max_tokens(
        request, model.max_model_len, num_prompt_tokens=num_prompt_tokens, prompt_field=prompt_field
    )
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}, more than the {max_tokens} tokens of max_tokens",
            param="min_tokens",
        )
    asked_stops = frozenset(request.stop_token_ids or ())
    for token_id in asked_stops:
        if not 0 <= token_id < model.vocab_size:
            raise InvalidRequest(
                f"stop_token_ids holds {token_id}; tokens are 0 to {model.vocab_size - 1}",
                param="stop_token_ids",
            )
    eos = frozenset() if request.ignore_eos else model.tokenizer.eos_token_ids
    stop_token_ids = asked_stops | eos
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
    )


def _choose_max_tokens(
    request: GenerationRequest, max_model_len: int, *, num_prompt_tokens: int, prompt_field: str
) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextTooLong(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"{prompt_field} resulted in {num_prompt_tokens} tokens, which leaves no room for an "
            f"answer. Please reduce the length of the {prompt_field}.",
            param=prompt_field,
        )
    field, asked = "max_tokens", request.max_tokens
    if isinstance(request, ChatRequest):
        if request.max_completion_tokens is not None:
            if asked not in (None, request.max_completion_tokens):
                raise InvalidRequest(
                    "max_tokens and max_completion_tokens differ; give one of them",
                    param="max_completion_tokens",
                )
            field, asked = "max_completion_tokens", request.max_completion_tokens
        default = room
    else:
        default = DEFAULT_COMPLETION_TOKENS
    if asked is None:
        return min(default, room)
    if asked > room:
        raise ContextTooLong(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {num_prompt_tokens + asked} tokens ({num_prompt_tokens} in the "
            f"{prompt_field}, {asked} in the completion). Please reduce the length of the "
            f"{prompt_field} or {field}.",
            param=field,
        )
    return asked


def _or(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
