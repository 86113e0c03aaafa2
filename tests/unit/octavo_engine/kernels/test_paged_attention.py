"""The gathering path and the reference against each other, and both against plain attention."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from octavo_engine.kernels.cpu import gather_attention
from octavo_engine.kernels.cpu.gather_attention import GatherAttention
from octavo_engine.kernels.paged_attention import PagedAttention, PagedBatch, ReferenceAttention

BLOCK = 4
DIM = 8
KV_HEADS = 2
BLOCKS = 200


class Case:
    """Sequences with a past of finite numbers, in a cache that holds NaN everywhere else."""

    def __init__(self, rows: list[tuple[int, int]], heads: int, dtype: torch.dtype, seed: int = 0):
        """`rows` are (tokens computed before, tokens of this step)."""
        generator = torch.Generator().manual_seed(seed)

        def randn(*extents: int) -> Tensor:
            return torch.randn(extents, generator=generator).to(dtype)

        self.keys = torch.full((BLOCKS, KV_HEADS, BLOCK, DIM), math.nan, dtype=dtype)
        self.values = self.keys.clone()
        free = torch.randperm(BLOCKS - 1, generator=generator).add(1).tolist()
        width = max(-(-(past + new) // BLOCK) for past, new in rows) + 2
        # Beyond a row's own blocks the table names blocks that it does not own, NaN inside.
        table = torch.full((len(rows), width), free.pop())
        slots: list[int] = []
        self.full_keys, self.full_values = [], []
        for row, (past, new) in enumerate(rows):
            total = past + new
            owned = [free.pop() for _ in range(-(-total // BLOCK))]
            table[row, : len(owned)] = torch.tensor(owned)
            keys, values = randn(total, KV_HEADS, DIM), randn(total, KV_HEADS, DIM)
            for t in range(past):
                self.keys[owned[t // BLOCK], :, t % BLOCK] = keys[t]
                self.values[owned[t // BLOCK], :, t % BLOCK] = values[t]
            slots += [owned[t // BLOCK] * BLOCK + t % BLOCK for t in range(past, total)]
            self.full_keys.append(keys)
            self.full_values.append(values)
        self.rows = rows
        self.query = randn(sum(new for _, new in rows), heads, DIM)
        self.key = torch.cat([k[past:] for k, (past, _) in zip(self.full_keys, rows, strict=True)])
        self.value = torch.cat(
            [v[past:] for v, (past, _) in zip(self.full_values, rows, strict=True)]
        )
        self.batch = PagedBatch(
            query_lens=[new for _, new in rows],
            context_lens=[past + new for past, new in rows],
            block_table=table,
            slots=torch.tensor(slots),
        )

    def run(self, make: Callable[..., PagedAttention], device: str = "cpu") -> Tensor:
        attention = make([self.keys.clone().to(device)], [self.values.clone().to(device)])
        batch = replace(
            self.batch,
            block_table=self.batch.block_table.to(device),
            slots=self.batch.slots.to(device),
        )
        inputs = (tensor.to(device) for tensor in (self.query, self.key, self.value))
        return attention.prepare(batch)(0, *inputs).cpu()

    def expected(self) -> Tensor:
        """Dense attention of every sequence for itself, in fp64."""
        outs, at = [], 0
        for (past, new), keys, values in zip(
            self.rows, self.full_keys, self.full_values, strict=True
        ):
            q = self.query[at : at + new].double().transpose(0, 1)
            group = q.shape[0] // KV_HEADS
            k = keys.double().transpose(0, 1).repeat_interleave(group, 0)
            v = values.double().transpose(0, 1).repeat_interleave(group, 0)
            scores = q @ k.transpose(1, 2) / math.sqrt(DIM)
            ahead = torch.ones(new, past + new, dtype=torch.bool).triu(past + 1)
            outs.append((scores.masked_fill(ahead, -math.inf).softmax(-1) @ v).transpose(0, 1))
            at += new
        return torch.cat(outs)


RAGGED = {
    "one token": [(0, 1)],
    "exactly a block": [(0, BLOCK)],
    "a block and one": [(0, BLOCK + 1)],
    "decode at every place of a block": [(past, 1) for past in range(3 * BLOCK + 1)],
    "decodes of very different length": [(0, 1), (150, 1), (3, 1), (149, 1), (70, 1)],
    "chunk after chunk": [(5, 3), (BLOCK, BLOCK), (9, 2), (2 * BLOCK - 1, 2)],
    "prompts between decodes": [(7, 1), (0, 9), (8, 1), (12, 5), (0, 1), (31, 1)],
}


@pytest.mark.parametrize("make", [GatherAttention, ReferenceAttention])
@pytest.mark.parametrize("heads", [2, 6], ids=["one head per KV head", "grouped"])
@pytest.mark.parametrize("rows", RAGGED.values(), ids=RAGGED.keys())
def test_ragged_batches_match_dense_attention_beside_poisoned_memory(
    rows: list[tuple[int, int]], heads: int, make: Callable[..., PagedAttention]
) -> None:
    case = Case(rows, heads, torch.float32)
    torch.testing.assert_close(case.run(make).double(), case.expected(), atol=2e-6, rtol=1e-5)


def test_a_long_prompt_is_computed_in_parts_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case([(13, 50), (0, 31)], 6, torch.float32)
    monkeypatch.setattr(gather_attention, "QUERY_CHUNK", 7)
    torch.testing.assert_close(
        case.run(GatherAttention).double(), case.expected(), atol=2e-6, rtol=1e-5
    )


def test_many_decodes_are_computed_in_groups_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case([(40 + i % 5, 1) for i in range(12)], 6, torch.float32)
    monkeypatch.setattr(gather_attention, "_GROUP_TOKENS", 100)
    torch.testing.assert_close(
        case.run(GatherAttention).double(), case.expected(), atol=2e-6, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_its_numbers(dtype: torch.dtype) -> None:
    case = Case(RAGGED["prompts between decodes"], 6, dtype)
    close = {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(case.run(GatherAttention).double(), case.expected(), **close)
    torch.testing.assert_close(case.run(ReferenceAttention).double(), case.expected(), **close)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("rows", RAGGED.values(), ids=RAGGED.keys())
def test_the_same_on_a_gpu(rows: list[tuple[int, int]]) -> None:
    case = Case(rows, 6, torch.float32)
    out = case.run(GatherAttention, "cuda").double()
    torch.testing.assert_close(out, case.expected(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [GatherAttention, ReferenceAttention])
def test_exactly_the_slots_that_are_named_are_written(
    make: Callable[..., PagedAttention],
) -> None:
    case = Case([(6, 1), (3, 1), (0, 5)], 2, torch.float32)
    case.batch.slots[1] = -1
    # What row 1 does not store is there already, as after a hit of its whole prompt.
    block = int(case.batch.block_table[1, 0])
    case.keys[block, :, 3], case.values[block, :, 3] = case.key[1], case.value[1]
    keys, values = case.keys.clone(), case.values.clone()
    out = make([keys], [values]).prepare(case.batch)(0, case.query, case.key, case.value)
    torch.testing.assert_close(out.double(), case.expected(), atol=2e-6, rtol=1e-5)
    expected = case.keys.clone()
    for token, slot in enumerate(case.batch.slots.tolist()):
        if slot >= 0:
            expected[slot // BLOCK, :, slot % BLOCK] = case.key[token]
    torch.testing.assert_close(keys, expected, equal_nan=True, atol=0, rtol=0)
    assert not case.keys.equal(keys)


def test_a_row_that_is_not_a_number_harms_no_other(  # F6
) -> None:
    case = Case([(6, 1), (7, 1), (3, 4), (2, 6)], 6, torch.float32)
    clean = case.run(GatherAttention)
    case.query[0] = math.nan
    case.key[0] = case.value[0] = math.nan
    out = case.run(GatherAttention)
    assert out[0].isnan().all()
    torch.testing.assert_close(out[1:], clean[1:])


def test_at_bfloat16_a_token_gets_the_same_bits_alone_in_a_batch_and_in_a_prompt() -> None:
    torch.manual_seed(3)
    length, blocks = 70, 40
    keys, values = (torch.randn(length, KV_HEADS, DIM).bfloat16() for _ in range(2))
    query = torch.randn(length, 6, DIM).bfloat16()

    def run(rows: list[tuple[int, int]], target: int) -> torch.Tensor:
        """Rows of (past, new), all of the same history in blocks of their own."""
        caches = [torch.full((400, KV_HEADS, BLOCK, DIM), math.nan).bfloat16() for _ in range(2)]
        table = torch.arange(len(rows) * blocks).view(len(rows), blocks) + 1
        slots, tokens = [], []
        for row, (past, new) in enumerate(rows):
            for position in range(past + new):
                slot = int(table[row, position // BLOCK]), position % BLOCK
                for cache, rows_of in zip(caches, (keys, values), strict=True):
                    cache[slot[0], :, slot[1]] = rows_of[position]
                if position >= past:
                    slots.append(slot[0] * BLOCK + slot[1])
                    tokens.append(position)
        step = GatherAttention([caches[0]], [caches[1]]).prepare(
            PagedBatch(
                query_lens=[new for _, new in rows],
                context_lens=[past + new for past, new in rows],
                block_table=table,
                slots=torch.tensor(slots),
            )
        )
        out = step(0, query[tokens], keys[tokens], values[tokens])
        return out[[i for i, position in enumerate(tokens) if position == target][-1]]

    for target in (0, 6, 15, 16, 33, 69):
        alone = run([(target, 1)], target)
        assert torch.equal(run([(0, target + 1)], target), alone)
        assert torch.equal(run([(3, 1), (60, 1), (31, 1), (target, 1)], target), alone)
        if target >= 5:
            assert torch.equal(run([(0, 9), (target - 5, 6)], target), alone)
