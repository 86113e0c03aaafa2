"""Paged attention by gathering blocks into dense tensors: plain torch, on any device.

Rows with one query (decodes) are computed together with rows of similar length; a row with more
(a part of a prompt) is computed alone with torch's fused attention.

At 16 bits decodes take the fused attention too, with the heads that share K as its queries, and
every context is filled up to whole runs of 16 tokens. Then bfloat16 gives a token the same bits
whether it comes alone, in a batch, or in any chunk of a prompt; with products of its own, rounded
elsewhere, three in five numbers of a decode differed from those of the prompt's kernel. At float32
sums differ by 1e-7 either way, and there the products are faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.paged_attention import PagedBatch, StepAttention, StoreIndex

# Decodes of a group are as long as its longest, to this share or two blocks; a group reads so many
# tokens at most.
_SIMILAR = 0.75
_GROUP_TOKENS = 32_768
# The fused kernel adds up in another order where a context does not fill its vectors.
_RUN = 16
# Queries that share one mask of queries × context.
QUERY_CHUNK = 512


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    tokens: Tensor | slice  # [rows]: where its queries are in the batch
    gather: Tensor  # [rows · kv_heads · blocks]: index into [num_blocks · kv_heads] half-blocks
    rows: int
    beyond: Tensor  # [rows, 1, 1, length] bool: no token of the row is there
    beyond_at: tuple[Tensor, Tensor]  # the same as indices (row, position)


@dataclass(frozen=True, slots=True)
class _Prompt:
    first: int
    length: int
    context: int
    gather: Tensor


class GatherAttention:
    """See `PagedAttention`. The caches are one tensor per layer, contiguous."""

    def __init__(self, key_caches: Sequence[Tensor], value_caches: Sequence[Tensor]) -> None:
        self._keys = key_caches
        self._values = value_caches
        _, self._kv_heads, self._block_size, self._head_dim = key_caches[0].shape
        # Seen as half-blocks, [num_blocks · kv_heads, block_size · head_dim], a gather by row gives
        # [.., kv_heads, blocks, ..]: each head's tokens in a run, with a single copy.
        self._key_rows = [cache.view(-1, self._block_size * self._head_dim) for cache in key_caches]
        self._value_rows = [
            cache.view(-1, self._block_size * self._head_dim) for cache in value_caches
        ]

    def prepare(self, batch: PagedBatch) -> StepAttention:
        index = StoreIndex(batch.slots, self._block_size)
        groups, prompts = self._split(batch)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            index.store(self._keys[layer], key)
            index.store(self._values[layer], value)
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
            for group in groups:
                out[group.tokens] = self._decode(layer, query[group.tokens], group)
            for prompt in prompts:
                here = slice(prompt.first, prompt.first + prompt.length)
                out[here] = self._prompt(layer, query[here], prompt)
            return out

        return attend

    def _split(self, batch: PagedBatch) -> tuple[list[_DecodeGroup], list[_Prompt]]:
        decodes: list[tuple[int, int, int]] = []  # blocks, row, token
        prompts: list[_Prompt] = []
        at = 0
        for row, (length, context) in enumerate(
            zip(batch.query_lens, batch.context_lens, strict=True)
        ):
            blocks = self._in_runs(-(-context // self._block_size))
            if length == 1:
                decodes.append((blocks, row, at))
            else:
                owned = torch.tensor([context], device=batch.block_table.device)
                gather = self._gather_index(self._table(batch, [row], owned, blocks))
                prompts.append(_Prompt(at, length, context, gather))
            at += length
        decodes.sort(reverse=True)
        groups: list[_DecodeGroup] = []
        begin = 0
        while begin < len(decodes):
            longest = decodes[begin][0]
            most = max(1, _GROUP_TOKENS // (longest * self._block_size))
            end = begin + 1
            while (
                end < len(decodes)
                and end - begin < most
                and decodes[end][0] >= min(longest * _SIMILAR, longest - 2)
            ):
                end += 1
            groups.append(self._group(batch, decodes[begin:end], longest))
            begin = end
        return groups, prompts

    def _group(
        self, batch: PagedBatch, members: list[tuple[int, int, int]], blocks: int
    ) -> _DecodeGroup:
        members = sorted(members, key=lambda member: member[2])
        device = batch.block_table.device
        contexts = torch.tensor([batch.context_lens[row] for _, row, _ in members], device=device)
        table = self._table(batch, [row for _, row, _ in members], contexts, blocks)
        beyond = torch.arange(blocks * self._block_size, device=device) >= contexts[:, None]
        where = beyond.nonzero(as_tuple=True)
        first, last = members[0][2], members[-1][2]
        return _DecodeGroup(
            tokens=slice(first, last + 1)
            if last - first + 1 == len(members)
            else torch.tensor([token for _, _, token in members], device=device),
            gather=self._gather_index(table),
            rows=len(members),
            beyond=beyond[:, None, None, :],
            beyond_at=(where[0], where[1]),
        )

    def _in_runs(self, blocks: int) -> int:
        step = math.lcm(_RUN, self._block_size) // self._block_size
        return -(-blocks // step) * step

    def _table(self, batch: PagedBatch, rows: list[int], contexts: Tensor, blocks: int) -> Tensor:
        """[rows, blocks] of block numbers. What lies beyond a row's own blocks is none of its: its
        last one stands there again, for the mask to hide."""
        last = (contexts - 1) // self._block_size
        places = torch.arange(blocks, device=contexts.device)
        chosen = torch.minimum(places, last[:, None])
        return batch.block_table[torch.tensor(rows, device=contexts.device)].gather(1, chosen)

    def _gather_index(self, table: Tensor) -> Tensor:
        """[rows, blocks] of block numbers → [rows · kv_heads · blocks] of half-block numbers."""
        heads = torch.arange(self._kv_heads, device=table.device)
        return (table[:, None, :] * self._kv_heads + heads[None, :, None]).reshape(-1)

    def _decode(self, layer: int, query: Tensor, group: _DecodeGroup) -> Tensor:
        """[rows, heads, head_dim] → the same; the heads that share K are rows of one product."""
        shape = (group.rows, self._kv_heads, -1, self._head_dim)
        keys = self._key_rows[layer].index_select(0, group.gather).view(shape)
        values = self._value_rows[layer].index_select(0, group.gather).view(shape)
        # Zero times NaN is NaN, so a zero weight does not hide what an unwritten place holds.
        values[group.beyond_at[0], :, group.beyond_at[1]] = 0
        if values.dtype.itemsize == 2:
            keys[group.beyond_at[0], :, group.beyond_at[1]] = 0
            packed = query.view(shape)
            mask = (~group.beyond).expand(-1, 1, packed.shape[2], -1)
            return F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask).reshape(
                query.shape
            )
        scores = query.view(shape) @ keys.transpose(2, 3)
        scores = scores.float().mul_(1 / math.sqrt(self._head_dim))
        weights = scores.masked_fill_(group.beyond, -math.inf).softmax(-1)
        return (weights.to(values.dtype) @ values).view(query.shape)

    def _prompt(self, layer: int, query: Tensor, prompt: _Prompt) -> Tensor:
        """[length, heads, head_dim] → the same; query i sees context − length + i + 1 tokens."""
        shape = (1, self._kv_heads, -1, self._head_dim)
        keys = self._key_rows[layer].index_select(0, prompt.gather).view(shape)
        values = self._value_rows[layer].index_select(0, prompt.gather).view(shape)
        keys[:, :, prompt.context :] = 0
        values[:, :, prompt.context :] = 0
        heads = query.transpose(0, 1).unsqueeze(0)
        before = prompt.context - prompt.length
        parts = []
        for begin in range(0, prompt.length, QUERY_CHUNK):
            end = min(begin + QUERY_CHUNK, prompt.length)
            seen = -(-(before + end) // _RUN) * _RUN
            ahead = torch.ones(end - begin, seen, dtype=torch.bool, device=query.device)
            parts.append(
                F.scaled_dot_product_attention(
                    heads[:, :, begin:end],
                    keys[:, :, :seen],
                    values[:, :, :seen],
                    attn_mask=ahead.tril_(before + begin),
                    enable_gqa=True,
                )
            )
        return torch.cat(parts, dim=2)[0].transpose(0, 1)
