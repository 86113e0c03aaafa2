"""The working tokenizer: text to token ids, token ids to bytes, with no control token by accident.

Two encoders share one vocabulary: `encode_text` knows ordinary and user-defined tokens, and
`encode_markup` knows the control tokens too. Whoever holds text that a user wrote into a chat
message uses the first, so `<|im_end|>` in a message stays seven harmless pieces of text.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import tokenizers
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers.models import BPE

from octavo_engine.config import TokenizerSpec
from octavo_engine.errors import CannotStart
from octavo_engine.serving.pretokenizers import PRE_TOKENIZERS
from octavo_wire.failures import Reason

CONTROL: Final = 3
USER_DEFINED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a rendered prompt; `markup` says that control tokens in it are meant."""

    text: str
    markup: bool


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's letters: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _make_encoder(spec: TokenizerSpec, added: Sequence[str]) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(spec.tokens)}
    merges = [_parse_merge(merge, vocabulary) for merge in spec.merges]
    encoder = tokenizers.Tokenizer(
        BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False)
    )
    splits = [
        pre_tokenizers.Split(Regex(expression), behavior="isolated")
        for expression in PRE_TOKENIZERS[spec.pre_tokenizer]
    ]
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=spec.add_space_prefix, trim_offsets=False, use_regex=False
    )
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    encoder.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    return encoder


def _parse_merge(merge: str, vocabulary: Collection[str]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CannotStart(
            Reason.MODEL_UNREADABLE,
            f"The tokenizer's merge {merge!r} is not two tokens.",
            "Convert the model to GGUF again; this file's tokenizer is damaged.",
        )
    for token in (left, right, left + right):
        if token not in vocabulary:
            raise CannotStart(
                Reason.MODEL_UNREADABLE,
                f"The tokenizer's merge {merge!r} needs the token {token!r}, which is not among "
                f"its {len(vocabulary)} tokens.",
                "Convert the model to GGUF again, its vocabulary and merges from one tokenizer.",
            )
    return left, right


def _check(spec: TokenizerSpec) -> None:
    if spec.kind != "gpt2":
        raise CannotStart(
            Reason.MODEL_NOT_SUPPORTED,
            f"The model's tokenizer is of the kind {spec.kind!r}.",
            "Use a model with a byte-level BPE tokenizer (kind 'gpt2'), such as SmolLM2 or Qwen2.",
        )
    if spec.pre_tokenizer not in PRE_TOKENIZERS:
        raise CannotStart(
            Reason.MODEL_NOT_SUPPORTED,
            f"The model's tokenizer cuts text by the rules of {spec.pre_tokenizer!r}.",
            f"Use a model with one of: {', '.join(PRE_TOKENIZERS)}.",
        )
    if not spec.merges:
        raise CannotStart(
            Reason.MODEL_UNREADABLE,
            "The model file holds no merges (tokenizer.ggml.merges), so text cannot be encoded.",
            "Convert the model to GGUF again with a current converter.",
        )
    if len(spec.token_types) != len(spec.tokens):
        raise CannotStart(
            Reason.MODEL_UNREADABLE,
            f"The tokenizer lists {len(spec.tokens)} tokens but {len(spec.token_types)} types.",
            "Convert the model to GGUF again; this file's tokenizer is damaged.",
        )


class Tokenizer:
    """Encodes text and knows the bytes of every token. Safe to use from several threads."""

    def __init__(self, spec: TokenizerSpec) -> None:
        """Raises CannotStart for a tokenizer that is damaged or of a kind not supported."""
        _check(spec)
        self.spec = spec
        self.vocab_size = len(spec.tokens)
        typed = list(zip(spec.tokens, spec.token_types, strict=True))
        user_defined = [token for token, kind in typed if kind == USER_DEFINED and token]
        self.control_tokens = [token for token, kind in typed if kind == CONTROL and token]
        self.control_ids = frozenset(
            i for i, kind in enumerate(spec.token_types) if kind == CONTROL
        )
        self._text_encoder = _make_encoder(spec, user_defined)
        self._markup_encoder = _make_encoder(spec, [*user_defined, *self.control_tokens])
        self._bytes = self._token_bytes()
        self._longest_token_bytes = max(map(len, self._bytes))

    def _token_bytes(self) -> list[bytes]:
        alphabet = byte_alphabet()
        table = []
        for token, kind in zip(self.spec.tokens, self.spec.token_types, strict=True):
            literal = kind in (CONTROL, USER_DEFINED) or any(c not in alphabet for c in token)
            table.append(token.encode() if literal else bytes(alphabet[c] for c in token))
        return table

    def encode_text(self, text: str) -> list[int]:
        """Ids of text in which control tokens are nothing but characters."""
        return list(self._text_encoder.encode(text, add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of text in which the names of control tokens mean those tokens."""
        return list(self._markup_encoder.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: control tokens are meant, and one BOS leads if the model wants it.

        An empty prompt is the BOS token alone, or nothing for a model that has none.
        """
        ids = self.encode_markup(text)
        bos = self.spec.bos_token_id
        wants_bos = self.spec.add_bos_token or not ids
        return [bos, *ids] if bos is not None and wants_bos and ids[:1] != [bos] else ids

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of a rendered chat; its template alone decides about BOS."""
        ids: list[int] = []
        for segment in segments:
            encode = self.encode_markup if segment.markup else self.encode_text
            ids += encode(segment.text)
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of `text`, cheap enough for texts of any size."""
        return -(-len(text) // self._longest_token_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def decode(self, token_ids: Sequence[int], *, skip_control: bool = True) -> str:
        """Text of whole sequences; what is no UTF-8 becomes U+FFFD."""
        kept = (i for i in token_ids if not (skip_control and i in self.control_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")


def control_token_pattern(control_tokens: Sequence[str]) -> re.Pattern[str]:
    """Matches any control token, the longest where several begin at one place."""
    alternatives = sorted(control_tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, alternatives)) if alternatives else r"(?!)")
