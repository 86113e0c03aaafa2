import pytest

from octavo_engine.core.block_hash import BlockKey, encode_tokens, hash_block
from octavo_engine.core.block_pool import NULL_BLOCK, BlockPool


def make_key(tokens: list[int], parent: BlockKey | None = None) -> BlockKey:
    return BlockKey(parent, encode_tokens(tokens), b"", hash_block)


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(5)
    assert NULL_BLOCK not in pool.allocate(4)
    assert (pool.num_usable, pool.num_free, pool.num_used) == (4, 0, 4)


def test_blocks_are_given_out_least_recently_freed_first() -> None:
    pool = BlockPool(4)
    for block_id in pool.allocate(3):
        pool.register(block_id, make_key([block_id]))
    pool.free([2])
    pool.free([3])
    pool.free([1])
    assert pool.allocate(3) == [2, 3, 1]
    pool.check_invariants()


def test_a_sequence_is_freed_tail_first_so_that_its_head_stays_longest() -> None:
    pool = BlockPool(4)
    table = pool.allocate(3)
    for block_id in table:
        pool.register(block_id, make_key([block_id]))
    pool.free(table)
    assert pool.allocate(3) == table[::-1]


def test_a_freed_block_can_be_found_until_it_is_given_out_again() -> None:
    pool = BlockPool(2)
    key = make_key([1, 2])
    [block_id] = pool.allocate(1)
    pool.register(block_id, key)
    pool.free([block_id])
    assert pool.find(make_key([1, 2])) == block_id
    assert pool.allocate(1) == [block_id]
    assert pool.find(key) is None
    pool.check_invariants()


def test_a_block_without_a_key_is_given_out_before_one_that_can_be_found() -> None:
    pool = BlockPool(3)
    table = pool.allocate(2)
    pool.register(table[0], make_key([1]))
    pool.free(table)
    assert pool.allocate(1) == [table[1]]


def test_a_shared_block_is_free_only_after_its_last_user_left() -> None:
    pool = BlockPool(3)
    [block_id] = pool.allocate(1)
    pool.register(block_id, make_key([1]))
    pool.take([block_id])
    pool.free([block_id])
    assert (pool.num_free, pool.ref_count(block_id)) == (1, 1)
    pool.free([block_id])
    assert pool.num_free == 2
    pool.check_invariants()


def test_taking_a_free_cached_block_consumes_a_free_block() -> None:
    pool = BlockPool(3)
    [block_id] = pool.allocate(1)
    pool.register(block_id, make_key([1]))
    pool.free([block_id])
    assert pool.count_free([block_id]) == 1
    pool.take([block_id])
    assert (pool.num_free, pool.count_free([block_id])) == (1, 0)


def test_of_two_blocks_with_equal_content_the_first_stays_the_one() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.register(first, make_key([1]))
    pool.register(second, make_key([1]))
    assert pool.find(make_key([1])) == first
    assert pool.key_of(second) is None
    pool.check_invariants()


def test_forgotten_content_is_not_found_but_its_user_keeps_the_block() -> None:
    pool = BlockPool(3)
    [block_id] = pool.allocate(1)
    pool.register(block_id, make_key([1]))
    pool.forget(make_key([1]))
    assert pool.find(make_key([1])) is None
    assert pool.ref_count(block_id) == 1
    pool.check_invariants()


def test_more_blocks_than_are_free_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="3 blocks asked, 2 free"):
        BlockPool(3).allocate(3)


def test_freeing_twice_is_our_mistake() -> None:
    pool = BlockPool(3)
    table = pool.allocate(1)
    pool.free(table)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(table)


class TestInvariants:
    def test_a_torn_free_list_is_noticed(self) -> None:
        pool = BlockPool(4)
        pool._blocks[2].before = pool._blocks[2]
        with pytest.raises(AssertionError, match="torn"):
            pool.check_invariants()

    def test_a_key_outside_the_look_up_table_is_noticed(self) -> None:
        pool = BlockPool(4)
        pool._blocks[2].key = make_key([1])
        with pytest.raises(AssertionError, match="differ"):
            pool.check_invariants()
