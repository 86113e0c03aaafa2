import pytest

from octavo_engine.core import block_pool
from octavo_engine.core.block_hash import BlockKey
from octavo_engine.core.kv_cache_manager import KVCacheManager
from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import RequestSpec
from octavo_engine.core.sequence import Sequence


def make_kv(num_blocks: int = 9, *, prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=4, prefix_caching=prefix_caching)


def make_sequence(prompt: list[int], salt: str | None = None) -> Sequence:
    spec = RequestSpec(
        request_id="r",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=8),
        arrival_s=0.0,
        cache_salt=salt,
    )
    return Sequence(spec, number=0, max_total_tokens=100)


def compute(kv: KVCacheManager, prompt: list[int], until: int | None = None) -> Sequence:
    sequence = make_sequence(prompt)
    kv.enter(sequence, kv.find_fit(sequence))
    sequence.num_computed_tokens = len(prompt) if until is None else until
    kv.commit(sequence)
    return sequence


def test_a_partial_last_block_is_never_shared() -> None:
    kv = make_kv()
    compute(kv, [1, 2, 3, 4, 5, 6, 7])
    fit = kv.find_fit(make_sequence([1, 2, 3, 4, 5, 6, 7]))
    assert (fit.num_cached_tokens, fit.num_new_blocks) == (4, 1)


def test_a_block_is_found_only_once_all_of_its_tokens_are_computed() -> None:
    kv = make_kv()
    compute(kv, list(range(8)), until=7)
    assert kv.find_fit(make_sequence(list(range(8)))).num_cached_tokens == 4


def test_a_block_is_not_found_before_its_commit() -> None:
    kv = make_kv()
    sequence = make_sequence([1, 2, 3, 4])
    kv.enter(sequence, kv.find_fit(sequence))
    sequence.num_computed_tokens = 4
    assert kv.find_fit(make_sequence([1, 2, 3, 4])).num_cached_tokens == 0


def test_tokens_that_the_host_has_not_seen_name_no_block() -> None:
    kv = make_kv()
    sequence = compute(kv, [1, 2, 3])
    sequence.num_computed_tokens = 4  # the fourth token is still on the device
    kv.commit(sequence)
    assert kv.pool.num_cached == 0
    sequence.token_ids.append(4)
    kv.commit(sequence)
    assert kv.find_fit(make_sequence([1, 2, 3, 4])).num_cached_tokens == 4


def test_cached_blocks_in_the_free_list_count_as_consumed() -> None:
    kv = make_kv()
    kept = compute(kv, list(range(8)))
    fit = kv.find_fit(make_sequence(list(range(12))))
    assert (fit.num_new_blocks, fit.num_consumed_blocks) == (1, 1)
    kv.leave(kept)
    fit = kv.find_fit(make_sequence(list(range(12))))
    assert (fit.num_new_blocks, fit.num_consumed_blocks) == (1, 3)


def test_entering_takes_the_cached_blocks_before_it_allocates_over_them() -> None:
    kv = make_kv(num_blocks=4)
    first = compute(kv, list(range(8)))
    table = list(first.block_ids)
    kv.leave(first)
    second = compute(kv, list(range(12)))
    assert second.block_ids[:2] == table
    assert kv.pool.num_free == 0
    kv.check_invariants([second])


def test_a_sequence_left_is_found_again_whole() -> None:
    kv = make_kv()
    kv.leave(compute(kv, list(range(16))))
    assert kv.find_fit(make_sequence(list(range(16)))).num_cached_tokens == 16


def test_nothing_is_found_after_its_row_went_wrong() -> None:
    kv = make_kv()
    sequence = compute(kv, list(range(8)))
    kv.forget(sequence)
    kv.leave(sequence)
    assert kv.find_fit(make_sequence(list(range(8)))).num_cached_tokens == 0
    kv.check_invariants([])


def test_without_prefix_caching_nothing_is_looked_up_or_kept() -> None:
    kv = make_kv(prefix_caching=False)
    kv.leave(compute(kv, list(range(8))))
    assert kv.find_fit(make_sequence(list(range(8)))).num_cached_tokens == 0
    assert kv.pool.num_cached == 0


def test_a_lost_reference_is_noticed() -> None:
    kv = make_kv()
    compute(kv, list(range(8)))
    with pytest.raises(AssertionError, match="1 references, 0 known"):
        kv.check_invariants([])


def test_a_first_look_up_walks_no_chain_of_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is proved by one step to a shared parent, so a long prompt costs its length."""
    steps = 0
    is_same = block_pool.is_same_content

    def count(one: BlockKey | None, other: BlockKey | None) -> bool:
        nonlocal steps
        while one is not None and other is not None and one is not other:
            steps += 1
            one, other = one.parent, other.parent
        return is_same(one, other)

    kv = make_kv(num_blocks=300)
    prompt = list(range(1000))
    compute(kv, prompt)
    monkeypatch.setattr(block_pool, "is_same_content", count)
    assert kv.find_fit(make_sequence(prompt)).num_cached_tokens == 1000
    assert 0 < steps <= 250
