"""Attention over a paged KV cache: the interface, how K and V are stored, and a slow reference.

A cache is [num_blocks, kv_heads, block_size, head_dim], one for keys and one for values in every
layer. Token t of a sequence lives in block `block_table[row, t // block_size]` at offset
`t % block_size`. Memory that no token of a sequence has been written to may hold anything, NaN
included: an implementation reads it with no effect on its result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """The rows of one step. Row i has `query_lens[i]` tokens, the last of its `context_lens[i]`."""

    query_lens: Sequence[int]
    context_lens: Sequence[int]  # tokens that the row's last query attends to, itself included
    block_table: Tensor  # [rows, blocks], int64; entries beyond a row's context mean nothing
    slots: Tensor  # [tokens], int64: block · block_size + offset to store K and V at, −1: nowhere


class StepAttention(Protocol):
    """Attention of one step, prepared once and called by every layer."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store `key` and `value` [tokens, kv_heads, head_dim], attend causally with `query`
        [tokens, heads, head_dim]; returns the like of `query`."""
        ...


class PagedAttention(Protocol):
    """An implementation of attention over one engine's cache."""

    def prepare(self, batch: PagedBatch) -> StepAttention: ...


class StoreIndex:
    """Where the K and V of one step go, worked out once for all layers."""

    def __init__(self, slots: Tensor, block_size: int) -> None:
        stored = slots >= 0
        self._tokens: Tensor | None = None  # None: all of them
        if not bool(stored.all()):
            self._tokens = stored.nonzero().squeeze(1)
            slots = slots[self._tokens]
        self._blocks = slots // block_size
        self._offsets = slots % block_size

    def store(self, cache: Tensor, rows: Tensor) -> None:
        """Write `rows` [tokens, kv_heads, head_dim] to their slots in `cache`."""
        if self._tokens is not None:
            rows = rows[self._tokens]
        cache[self._blocks, :, self._offsets] = rows


class ReferenceAttention:
    """One query at a time, in fp32, exactly as the definition reads. For tests."""

    def __init__(self, key_caches: Sequence[Tensor], value_caches: Sequence[Tensor]) -> None:
        self._keys = key_caches
        self._values = value_caches

    def prepare(self, batch: PagedBatch) -> StepAttention:
        index = StoreIndex(batch.slots, self._keys[0].shape[2])

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            index.store(self._keys[layer], key)
            index.store(self._values[layer], value)
            out = torch.empty_like(query)
            at = 0
            for row, length in enumerate(batch.query_lens):
                for i in range(length):
                    context = batch.context_lens[row] - length + i + 1
                    out[at] = self._one(layer, query[at], batch.block_table[row], context)
                    at += 1
            return out

        return attend

    def _one(self, layer: int, query: Tensor, blocks: Tensor, context: int) -> Tensor:
        keys = self._read(self._keys[layer], blocks, context)
        values = self._read(self._values[layer], blocks, context)
        group = query.shape[0] // keys.shape[1]
        out = torch.empty_like(query)
        for head in range(query.shape[0]):
            scores = keys[:, head // group] @ query[head].float() / math.sqrt(query.shape[1])
            out[head] = (scores.softmax(0) @ values[:, head // group]).to(query.dtype)
        return out

    @staticmethod
    def _read(cache: Tensor, blocks: Tensor, context: int) -> Tensor:
        """[context, kv_heads, head_dim] of one sequence, token by token."""
        size = cache.shape[2]
        return torch.stack(
            [cache[int(blocks[t // size]), :, t % size].float() for t in range(context)]
        )
