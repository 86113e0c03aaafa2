"""How much KV cache a memory limit leaves, and how long a sequence that cache can hold.

    limit × utilization
    ├── overhead      interpreter, libraries, buffers of the server
    ├── weights
    ├── activations   the largest step
    └── KV cache      num_blocks × bytes_per_block; block 0 is the null block and holds no tokens

Plain arithmetic on the numbers that are passed in; results carry them for messages.
"""

from collections.abc import Callable
from dataclasses import dataclass

from octavo_sizing.shape import ModelShape

FLOAT32_BYTES = 4
# Queries of one prompt whose mask is in memory at once; the kernels keep to it.
MASKED_QUERIES = 512
# Below this an answer is hardly possible, so `auto` does not choose it.
MIN_AUTO_MODEL_LEN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """What a limit is spent on, in bytes."""

    limit_bytes: int
    utilization: float
    overhead_bytes: int
    weights_bytes: int
    activation_bytes: int

    @property
    def usable_bytes(self) -> int:
        return int(self.limit_bytes * self.utilization)

    @property
    def cache_bytes(self) -> int:
        """What is left for the KV cache; negative when the model alone is too large."""
        spent = self.overhead_bytes + self.weights_bytes + self.activation_bytes
        return self.usable_bytes - spent


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """A KV cache of `num_blocks` blocks, the null block included."""

    num_blocks: int
    block_size: int
    bytes_per_block: int

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def usable_tokens(self) -> int:
        return max(0, self.num_blocks - 1) * self.block_size


def weights_bytes(shape: ModelShape, element_bytes: int) -> int:
    return shape.parameters * element_bytes


def block_bytes(shape: ModelShape, *, block_size: int, element_bytes: int) -> int:
    return shape.kv_bytes_per_token(element_bytes) * block_size


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def activation_bytes(
    shape: ModelShape,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    element_bytes: int,
) -> int:
    """An upper estimate of what the largest step holds at once beside weights and cache.

    The widest moment of a layer is its feed-forward: residual, normed input, fused gate and up,
    their product. Attention holds the gathered K and V of one long sequence and a mask of
    some queries × context. Logits are fp32 and live twice while they are sampled from. A sequence
    with penalties counts its tokens, in fp32 and a bool for each of the vocabulary.
    """
    per_token = 3 * shape.hidden_size + 4 * shape.intermediate_size
    per_token += 2 * (shape.attention_heads + 2 * shape.kv_heads) * shape.head_dim
    layer = max_num_batched_tokens * per_token * element_bytes
    context = max(max_model_len, max_num_batched_tokens)
    gathered = 2 * context * shape.attention_heads * shape.head_dim * element_bytes
    mask = min(MASKED_QUERIES, max_num_batched_tokens) * context * (1 + FLOAT32_BYTES)
    logits = 2 * max_num_seqs * shape.vocab_size * FLOAT32_BYTES
    counts = max_num_seqs * shape.vocab_size * (FLOAT32_BYTES + 1)
    return layer + gathered + mask + logits + counts


def pool_from_bytes(cache_bytes: int, *, block_size: int, bytes_per_block: int) -> KvPool:
    """The largest pool that `cache_bytes` hold; it may be too small for a single token."""
    return KvPool(
        num_blocks=max(0, cache_bytes) // bytes_per_block,
        block_size=block_size,
        bytes_per_block=bytes_per_block,
    )


def pool_needed(
    *, max_num_seqs: int, max_model_len: int, block_size: int, bytes_per_block: int
) -> KvPool:
    """The pool in which every sequence can be as long as allowed at the same time."""
    return KvPool(
        num_blocks=1 + max_num_seqs * blocks_for(max_model_len, block_size),
        block_size=block_size,
        bytes_per_block=bytes_per_block,
    )


def longest_model_len(
    pool_at: Callable[[int], KvPool], *, context_length: int
) -> tuple[int, KvPool]:
    """The longest sequence that fits, and its pool; (0, …) when not even a short one does.

    `pool_at(length)` is the pool that is left when sequences may be `length` long. Longer ones need
    larger activations, so it never grows with the length, and halving the distance finds the edge.
    """
    pool = pool_at(context_length)
    if pool.usable_tokens >= context_length:
        return context_length, pool
    fits, too_long = 1, context_length
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if pool_at(middle).usable_tokens >= middle:
            fits = middle
        else:
            too_long = middle
    return (fits, pool_at(fits)) if fits >= 2 else (0, pool)


def format_bytes(count: int) -> str:
    """Bytes for people: '1.5 GiB', '812 MiB'."""
    if abs(count) >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.0f} MiB"
