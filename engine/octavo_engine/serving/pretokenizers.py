r"""How each family of byte-level BPE tokenizers cuts text before merging, by its GGUF id.

`tokenizer.ggml.pre` names a cut; llama.cpp's source defines what each name means. A cut is a list
of expressions applied one after the other: each splits what the one before left whole, and the
matches as well as what lies between them become pieces. Every expression below is completed by
what it does not match, so a missing `|\s+` at the end changes nothing.
"""

from typing import Final

_CONTRACTIONS: Final = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"


def _tiktoken_like(digits: str) -> str:
    return (
        rf"{_ANY_CASE_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


PRE_TOKENIZERS: Final[dict[str, tuple[str, ...]]] = {
    "gpt-2": (_WORDS,),
    "smollm": (r"\p{N}", _WORDS),
    "llama-bpe": (_tiktoken_like(r"\p{N}{1,3}"),),
    "qwen2": (_tiktoken_like(r"\p{N}"),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
