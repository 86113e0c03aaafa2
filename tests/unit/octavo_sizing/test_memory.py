import pytest

from octavo_sizing.memory import (
    KvPool,
    MemoryBudget,
    activation_bytes,
    block_bytes,
    blocks_for,
    format_bytes,
    longest_model_len,
    pool_from_bytes,
    pool_needed,
    weights_bytes,
)
from octavo_sizing.shape import ModelShape

SHAPE = ModelShape(
    architecture="llama",
    layers=30,
    hidden_size=576,
    intermediate_size=1536,
    attention_heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_length=8192,
    tied_embeddings=True,
)


def test_a_worked_budget() -> None:
    budget = MemoryBudget(
        limit_bytes=1000,
        utilization=0.9,
        overhead_bytes=100,
        weights_bytes=300,
        activation_bytes=200,
    )
    assert budget.usable_bytes == 900
    assert budget.cache_bytes == 300


def test_block_and_weight_bytes() -> None:
    assert block_bytes(SHAPE, block_size=16, element_bytes=4) == 16 * 46_080
    assert weights_bytes(SHAPE, 2) == 2 * 134_515_008


def test_a_pool_loses_one_block_to_the_null_block() -> None:
    pool = pool_from_bytes(1050, block_size=16, bytes_per_block=100)
    assert (pool.num_blocks, pool.nbytes, pool.usable_tokens) == (10, 1000, 144)


@pytest.mark.parametrize("cache_bytes", [-5, 0, 99])
def test_too_few_bytes_give_an_empty_pool(cache_bytes: int) -> None:
    pool = pool_from_bytes(cache_bytes, block_size=16, bytes_per_block=100)
    assert (pool.num_blocks, pool.usable_tokens) == (0, 0)


def test_no_more_is_needed_than_all_sequences_at_full_length() -> None:
    pool = pool_needed(max_num_seqs=3, max_model_len=33, block_size=16, bytes_per_block=1)
    assert pool.num_blocks == 1 + 3 * 3
    assert blocks_for(32, 16) == 2


def test_activations_grow_with_every_limit() -> None:
    base = {
        "max_num_batched_tokens": 256,
        "max_num_seqs": 8,
        "max_model_len": 1024,
        "element_bytes": 4,
    }
    smallest = activation_bytes(SHAPE, **base)
    for key in base:
        assert activation_bytes(SHAPE, **{**base, key: base[key] * 2}) > smallest, key


def pool_of(tokens: int) -> KvPool:
    return KvPool(num_blocks=1 + tokens // 16, block_size=16, bytes_per_block=1)


def test_the_longest_length_is_the_context_when_it_fits() -> None:
    assert longest_model_len(lambda _: pool_of(4096), context_length=2048)[0] == 2048


def test_the_longest_length_is_exact_though_the_context_leaves_no_pool() -> None:
    length, pool = longest_model_len(lambda n: pool_of(max(0, 1600 - n)), context_length=8192)
    # 800 leaves 800 tokens; one more leaves 799 and holds whole blocks of 16 alone.
    assert length == 800
    assert pool.usable_tokens == 800


def test_nothing_fits() -> None:
    assert longest_model_len(lambda _: pool_of(0), context_length=8192)[0] == 0


def test_sizes_for_people() -> None:
    assert format_bytes(812 * 2**20) == "812 MiB"
    assert format_bytes(3 * 2**29) == "1.50 GiB"
