"""Log-probabilities of tokens in the shapes of the OpenAI API.

A chat tells each token's text and bytes. A completion tells parallel lists, with the place of
each token in the text; there, a token that is not whole characters is written `bytes:\\xe2\\x9c`,
so that different ones stay apart. JSON knows no infinities: what cannot come has -9999.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo_engine.core.messages import TokenLogprob
from octavo_engine.serving.tokenizer import Tokenizer

_NEVER: Final = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedToken:
    """A token of a choice's text; `logprob` is None for the first one of an echoed prompt."""

    token_id: int
    text_offset: int  # of its first character in the choice's text
    logprob: TokenLogprob | None


def clamp(logprob: float) -> float:
    """A number that JSON can write: comparisons with NaN are false, so it becomes -9999 too."""
    return logprob if logprob > _NEVER else _NEVER


def chat_logprobs(
    tokens: Sequence[PlacedToken], tokenizer: Tokenizer, *, num_top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    content = []
    for token in tokens:
        assert token.logprob is not None, "chats echo no prompt"
        top = [
            _chat_entry(tokenizer, token_id, logprob)
            for token_id, logprob in token.logprob.top[:num_top]
        ]
        entry = _chat_entry(tokenizer, token.token_id, token.logprob.logprob)
        content.append({**entry, "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[PlacedToken], tokenizer: Tokenizer, *, num_top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion: the token itself is always among `top_logprobs`."""
    return {
        "tokens": [_name(tokenizer, token.token_id) for token in tokens],
        "token_logprobs": [
            None if token.logprob is None else clamp(token.logprob.logprob) for token in tokens
        ],
        "top_logprobs": [
            None if token.logprob is None else _named_top(tokenizer, token.logprob, num_top)
            for token in tokens
        ],
        "text_offset": [token.text_offset for token in tokens],
    }


def prompt_logprobs(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, *, num_top: int
) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token, candidates by id; nothing comes before the first."""
    rows: list[dict[str, Any] | None] = [None]
    for logprob in logprobs:
        ranked = [
            (rank, token_id, value)
            for rank, (token_id, value) in enumerate(logprob.top[:num_top], start=1)
            if token_id != logprob.token_id
        ]
        own = (logprob.rank, logprob.token_id, logprob.logprob)
        rows.append(
            {
                str(token_id): {
                    "logprob": clamp(value),
                    "rank": rank,
                    "decoded_token": tokenizer.decode([token_id], skip_control=False),
                }
                for rank, token_id, value in sorted([own, *ranked])
            }
        )
    return rows


def _chat_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": clamp(logprob),
        "bytes": list(data),
    }


def _named_top(tokenizer: Tokenizer, logprob: TokenLogprob, num_top: int) -> dict[str, float]:
    named = {_name(tokenizer, token_id): clamp(value) for token_id, value in logprob.top[:num_top]}
    named.setdefault(_name(tokenizer, logprob.token_id), clamp(logprob.logprob))
    return named


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
