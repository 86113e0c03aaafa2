"""A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU.

It runs a flat list of tokens of any sequences; which sequence a token belongs to, and where its
past is, only the attention knows.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.paged_attention import StepAttention
from octavo_engine.models.config import ModelConfig
from octavo_engine.models.layers import Linear, RMSNorm, RotaryEmbedding, rotate, swiglu

Allocate = Callable[..., Tensor]


class DecoderLayer:
    """One layer. q, k and v are rows of one matrix, as are gate and up: fewer, larger products."""

    def __init__(self, config: ModelConfig, allocate: Allocate) -> None:
        shape = config.shape
        self._heads, self._kv_heads = shape.attention_heads, shape.kv_heads
        self._head_dim = shape.head_dim
        query = shape.attention_heads * shape.head_dim
        self.attn_norm = RMSNorm(allocate(shape.hidden_size), config.rms_norm_eps)
        self.qkv = Linear(allocate(query + 2 * shape.kv_heads * shape.head_dim, shape.hidden_size))
        self.attn_output = Linear(allocate(shape.hidden_size, query))
        self.ffn_norm = RMSNorm(allocate(shape.hidden_size), config.rms_norm_eps)
        self.gate_up = Linear(allocate(2 * shape.intermediate_size, shape.hidden_size))
        self.down = Linear(allocate(shape.hidden_size, shape.intermediate_size))

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attention: StepAttention
    ) -> Tensor:
        tokens = x.shape[0]
        qkv = self.qkv(self.attn_norm(x)).view(tokens, -1, self._head_dim)
        rotated = rotate(qkv[:, : self._heads + self._kv_heads], cos, sin)
        attended = attention(
            layer,
            rotated[:, : self._heads],
            rotated[:, self._heads :],
            qkv[:, self._heads + self._kv_heads :],
        )
        x = x + self.attn_output(attended.reshape(tokens, -1))
        return x + self.down(swiglu(self.gate_up(self.ffn_norm(x))))


class Decoder:
    """The whole model. Made empty; `models.weights` fills `parameters()`."""

    def __init__(
        self, config: ModelConfig, *, max_positions: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        def allocate(*extents: int) -> Tensor:
            return torch.empty(extents, dtype=dtype, device=device)

        shape = config.shape
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = allocate(shape.vocab_size, shape.hidden_size)
        self.layers = [DecoderLayer(config, allocate) for _ in range(shape.layers)]
        self.output_norm = RMSNorm(allocate(shape.hidden_size), config.rms_norm_eps)
        self.output = Linear(
            self.embedding
            if shape.tied_embeddings
            else allocate(shape.vocab_size, shape.hidden_size)
        )
        self._rope = RotaryEmbedding(shape.head_dim, shape.rope_theta, max_positions, device)

    def parameters(self) -> dict[str, Tensor]:
        """Every tensor that a file must fill, by name; tied embeddings are there once."""
        named = {"embedding": self.embedding, "output_norm": self.output_norm.weight}
        if self.output.weight is not self.embedding:
            named["output"] = self.output.weight
        for index, layer in enumerate(self.layers):
            named |= {
                f"layers.{index}.attn_norm": layer.attn_norm.weight,
                f"layers.{index}.qkv": layer.qkv.weight,
                f"layers.{index}.attn_output": layer.attn_output.weight,
                f"layers.{index}.ffn_norm": layer.ffn_norm.weight,
                f"layers.{index}.gate_up": layer.gate_up.weight,
                f"layers.{index}.down": layer.down.weight,
            }
        return named

    def hidden_states(
        self, token_ids: Tensor, positions: Tensor, attention: StepAttention
    ) -> Tensor:
        """[tokens] ids and positions → [tokens, hidden], K and V stored on the way."""
        x = F.embedding(token_ids, self.embedding)
        cos, sin = self._rope.at(positions, self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, index, attention)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] of the tokens to sample after → [rows, vocabulary] in fp32."""
        return self.output(self.output_norm(hidden)).float()
