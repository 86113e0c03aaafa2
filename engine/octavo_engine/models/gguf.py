"""A GGUF file as a source of configuration, weights and tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from octavo_engine.config import TokenizerSpec
from octavo_engine.models.config import ModelConfig, ModelNotSupportedError
from octavo_sizing.gguf_header import GgufError, GgufHeader, TensorInfo, read_header
from octavo_sizing.shape import shape_from_gguf

SUPPORTED_ARCHITECTURES: Final = ("llama",)

# Keys under the architecture's name that are read, or that do not change what is computed.
_UNDERSTOOD: Final = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "vocab_size",
    }
)
# Keys that are harmless with these values alone.
_HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
_END_TOKENS: Final = frozenset(
    {
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
    }
)
_CONTROL_TOKEN: Final = 3

FloatArray = npt.NDArray[np.float32]


class GgufModel:
    """An open GGUF file; weights are mapped, and read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises GgufError, ShapeError or ModelNotSupportedError."""
        self.header: GgufHeader = read_header(path)
        self.config: ModelConfig = _config(self.header)
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")

    @property
    def tensor_names(self) -> list[str]:
        return list(self.header.tensors)

    def read(self, name: str) -> FloatArray:
        """A tensor in fp32 and in the decoder's layout: rows are outputs, RoPE rotates halves."""
        array = self.read_as_stored(name)
        heads = _permuted_heads(name, self.config)
        return undo_rope_permutation(array, heads) if heads else array

    def read_as_stored(self, name: str) -> FloatArray:
        """A tensor in fp32, dequantized, in the file's own order of rows."""
        info = self.header.tensors[name]
        raw = self._bytes[info.offset : info.offset + info.nbytes]
        rows = info.shape[:0:-1]  # file order is innermost first
        array = _dequantize(raw.reshape(*rows, -1), info)
        return array.reshape(info.shape[::-1])


def _dequantize(rows: npt.NDArray[np.uint8], info: TensorInfo) -> FloatArray:
    try:
        return dequantize(rows, GGMLQuantizationType(info.type_id))
    except NotImplementedError:
        raise ModelNotSupportedError(
            f"Tensor {info.name!r} is stored as {info.type_name}, which cannot be read; "
            "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and the K-quants can."
        ) from None


def _permuted_heads(name: str, config: ModelConfig) -> int:
    """Heads of a tensor whose rows GGUF stores for adjacent-pair RoPE; 0 for all others.

    llama.cpp rotates pairs (0, 1), (2, 3)… of a llama model's heads and its converter reorders the
    rows of q and k for that. The decoder rotates halves, (0, d/2), (1, d/2 + 1)…, as trained.
    """
    if config.shape.architecture != "llama":
        return 0
    if name.endswith(".attn_q.weight"):
        return config.shape.attention_heads
    return config.shape.kv_heads if name.endswith(".attn_k.weight") else 0


def undo_rope_permutation(rows: FloatArray, heads: int) -> FloatArray:
    """[heads · head_dim, …] in adjacent-pair order → the same rows in half order."""
    half = rows.shape[0] // heads // 2
    pairs = rows.reshape(heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _config(header: GgufHeader) -> ModelConfig:
    metadata = header.metadata
    architecture = str(metadata.get("general.architecture", "none"))
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelNotSupportedError(
            f"The architecture is {architecture!r}; "
            f"{', '.join(map(repr, SUPPORTED_ARCHITECTURES))} is supported."
        )
    for key, value in metadata.items():
        prefix, _, name = key.partition(".")
        if prefix != architecture or name in _UNDERSTOOD:
            continue
        if value not in _HARMLESS.get(name, ()):
            raise ModelNotSupportedError(
                f"The file sets {key} to {_short(value)}, which changes what the model computes "
                "and is not supported; plain RMSNorm, RoPE, grouped-query attention and SwiGLU are."
            )
    shape = shape_from_gguf(header)
    eps = metadata.get(f"{architecture}.attention.layer_norm_rms_epsilon")
    if not isinstance(eps, float) or not eps > 0:
        raise GgufError(f"{architecture}.attention.layer_norm_rms_epsilon is {eps!r}")
    rope_dim = metadata.get(f"{architecture}.rope.dimension_count", shape.head_dim)
    if not isinstance(rope_dim, int):
        raise GgufError(f"{architecture}.rope.dimension_count is {_short(rope_dim)}")
    return ModelConfig(shape=shape, rms_norm_eps=eps, rope_dim=rope_dim)


def tokenizer_spec(header: GgufHeader) -> TokenizerSpec:
    """The tokenizer that the metadata describes. Raises GgufError naming what is missing."""
    metadata = header.metadata

    def take(key: str, kind: type, check: Callable[[Any], bool] = lambda _: True) -> Any:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is not None and not (isinstance(value, kind) and check(value)):
            raise GgufError(f"tokenizer.ggml.{key} is {_short(value)}")
        return value

    def strings(items: list[Any]) -> bool:
        return all(isinstance(item, str) for item in items)

    kind = take("model", str)
    tokens: list[str] | None = take("tokens", list, strings)
    if kind is None or not tokens:
        raise GgufError("it carries no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens)")
    merges: list[str] | None = take("merges", list, strings)
    if kind == "gpt2" and not merges:
        raise GgufError("its byte-level BPE tokenizer has no merges (tokenizer.ggml.merges)")
    types: list[int] = take("token_type", list) or [1] * len(tokens)
    if len(types) != len(tokens):
        raise GgufError(f"it has {len(tokens)} tokens and {len(types)} token types")

    def token_id(key: str) -> int | None:
        found: int | None = take(key, int)
        if found is not None and not 0 <= found < len(tokens):
            raise GgufError(f"tokenizer.ggml.{key} is {found}, of {len(tokens)} tokens")
        return found

    ends = {token_id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")}
    ends |= {
        index
        for index, text in enumerate(tokens)
        if types[index] == _CONTROL_TOKEN and text in _END_TOKENS
    }
    template = metadata.get("tokenizer.chat_template")
    return TokenizerSpec(
        kind=kind,
        pre_tokenizer=take("pre", str) or "default",
        tokens=tokens,
        token_types=types,
        merges=merges or [],
        bos_token_id=token_id("bos_token_id"),
        eos_token_id=token_id("eos_token_id"),
        eos_token_ids=frozenset(end for end in ends if end is not None),
        add_bos_token=bool(take("add_bos_token", bool)),
        add_space_prefix=bool(take("add_space_prefix", bool)),
        chat_template=template if isinstance(template, str) else None,
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
