"""When a sequence ends by its own tokens. Stop strings are serving's: only it sees text."""

from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason


def decide_max_total_tokens(
    num_prompt_tokens: int, max_tokens: int, max_model_len: int, kv_capacity_tokens: int
) -> int:
    """Prompt and output tokens at which a sequence ends with `length`, known before it starts.

    The last token is never fed back, so it needs no room in the KV cache: with a capacity of 32
    and a prompt of 30, token 33 is the last that can be computed from what the cache holds.
    """
    return min(num_prompt_tokens + max_tokens, max_model_len, kv_capacity_tokens + 1)


def decide_finish(
    token_id: int,
    num_generated_tokens: int,
    num_total_tokens: int,
    max_total_tokens: int,
    sampling: SamplingParams,
) -> FinishReason | None:
    """Whether the sequence ends with this token, already counted in both numbers.

    A stop token that is also the last one allowed is a stop: the model had said what it would.
    """
    if token_id in sampling.stop_token_ids and num_generated_tokens >= sampling.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_total_tokens >= max_total_tokens else None
