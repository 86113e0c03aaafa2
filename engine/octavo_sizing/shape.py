"""The numbers of a decoder-only model that decide its memory and its work."""

from dataclasses import dataclass
from typing import Any

from octavo_sizing.gguf_header import GgufHeader


class ShapeError(ValueError):
    """The description lacks a number, or has one that makes no sense; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int  # tokens that the model was trained to attend over
    rope_theta: float = 10_000.0
    tied_embeddings: bool = False  # the output projection is the token embedding

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden_size",
            "intermediate_size",
            "attention_heads",
            "kv_heads",
            "head_dim",
            "vocab_size",
            "context_length",
        ):
            if getattr(self, name) < 1:
                raise ShapeError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.attention_heads % self.kv_heads:
            raise ShapeError(
                f"{self.attention_heads} attention heads cannot share {self.kv_heads} KV heads"
            )

    @property
    def parameters_per_layer(self) -> int:
        """Weights of one layer: attention, SwiGLU feed-forward and two norms, no biases."""
        attention = self.hidden_size * self.head_dim * 2 * (self.attention_heads + self.kv_heads)
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        return attention + feed_forward + 2 * self.hidden_size

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.layers * self.parameters_per_layer + embeddings + self.hidden_size

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """K and V of one token in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def shape_from_gguf(header: GgufHeader) -> ModelShape:
    """The shape that a GGUF header describes. Raises ShapeError naming the key that is missing."""
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ShapeError("general.architecture is missing")

    def number(key: str, default: int | None = None) -> int:
        name = f"{architecture}.{key}"
        found: Any = metadata.get(name, default)
        if isinstance(found, list) and found and all(item == found[0] for item in found):
            found = found[0]  # some files give one number per layer
        if isinstance(found, bool) or not isinstance(found, int):
            raise ShapeError(f"{name} is {'missing' if found is None else repr(found)}")
        return found

    heads = number("attention.head_count")
    hidden_size = number("embedding_length")
    if heads < 1:
        raise ShapeError(f"{architecture}.attention.head_count is {heads}")
    head_dim = number("attention.key_length", hidden_size // heads)
    if number("attention.value_length", head_dim) != head_dim:
        raise ShapeError("keys and values of different length are not supported")
    embedding = header.tensors.get("token_embd.weight")
    tokens = metadata.get("tokenizer.ggml.tokens")
    listed = len(tokens) if isinstance(tokens, list) else None
    rope_theta: Any = metadata.get(f"{architecture}.rope.freq_base", 10_000.0)
    return ModelShape(
        architecture=architecture,
        layers=number("block_count"),
        hidden_size=hidden_size,
        intermediate_size=number("feed_forward_length"),
        attention_heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[-1] if embedding else number("vocab_size", listed),
        context_length=number("context_length"),
        rope_theta=float(rope_theta),
        tied_embeddings="output.weight" not in header.tensors,
    )
