"""Replays of faults that other engines had; each class is named after its kind of fault."""

import random

import pytest

from octavo_engine.core.block_hash import HashFunction
from octavo_engine.core.kv_cache_manager import KVCacheManager
from octavo_engine.core.request import FinishReason
from octavo_engine.errors import ContextTooLong
from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def random_prompt(seed: int, length: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(1000) for _ in range(length)]


class TestSamePromptsGiveSameAnswers:
    """A1: results differed between passes and between cache on and off."""

    @DEPTHS
    def test_two_passes_with_and_without_the_cache_agree(self, depth: int) -> None:
        answers = []
        for prefix_caching in (True, False):
            driver = Driver(num_blocks=1000, prefix_caching=prefix_caching, async_depth=depth)
            for number in range(2):
                for seed in range(16):
                    driver.add(f"{number}/{seed}", random_prompt(seed, 129))
                driver.run()
                answers.append([driver.tokens[f"{number}/{seed}"] for seed in range(16)])
            if prefix_caching:
                hits = [driver.records[f"1/{seed}"].num_cached_tokens for seed in range(16)]
                assert sum(hits) / (16 * 129) > 0.9
        assert all(answer == answers[0] for answer in answers)


class TestHashCollisions:
    """A2: a collision silently reused another request's KV."""

    @pytest.mark.parametrize(
        "make_digest",
        [
            pytest.param(lambda content: b"always the same", id="constant"),
            pytest.param(lambda content: bytes([sum(content) % 3]), id="three values"),
            pytest.param(lambda content: content[-4:], id="last token only"),
        ],
    )
    def test_a_weak_hash_misses_and_never_crosses(self, make_digest: HashFunction) -> None:
        kv = KVCacheManager(
            num_blocks=33, block_size=4, prefix_caching=True, make_digest=make_digest
        )
        driver = Driver(num_blocks=33, kv=kv)
        tail = list(range(100, 128))
        for number in range(60):
            head = random.Random(number).choice([[1, 2, 3, 4], [4, 3, 2, 1], [9, 2, 3, 4]])
            driver.add(str(number), head + tail[: 4 * (number % 7)], max_tokens=2)
            driver.run()
        driver.check_answers()
        assert driver.scheduler.stats().prefix_hit_tokens > 0

    def test_equal_blocks_under_unequal_parents_with_equal_digests_do_not_cross(self) -> None:
        def ignore_first_block(content: bytes) -> bytes:
            return content[-16:] if content[-16:-12] != b"\x01\0\0\0" else b"first"

        kv = KVCacheManager(
            num_blocks=9, block_size=4, prefix_caching=True, make_digest=ignore_first_block
        )
        driver = Driver(num_blocks=9, kv=kv)
        shared = [7, 7, 7, 7]
        driver.add("X", [1, 2, 2, 2, *shared, 5], max_tokens=1)
        driver.run()
        kv.pool.forget(next(iter(kv.pool._cached.values())).key)  # X's first block is evicted
        driver.add("Y", [1, 3, 3, 3, 6], max_tokens=1)
        driver.run()
        driver.add("Z", [1, 3, 3, 3, *shared, 5], max_tokens=1)
        driver.run()
        assert driver.records["Z"].num_cached_tokens == 4, "Y's block, and not X's second one"
        driver.check_answers()


class TestFullHits:
    """A6: a prompt found whole gave a step of no tokens, or wrote into shared blocks."""

    @DEPTHS
    @pytest.mark.parametrize("length", [1, 4, 8, 16])
    def test_a_prompt_of_whole_blocks_costs_one_token_and_writes_nothing(
        self, length: int, depth: int
    ) -> None:
        driver = Driver(async_depth=depth)
        prompt = random_prompt(1, length)
        driver.add("first", prompt, max_tokens=30)
        driver.step()
        for _ in range(3):
            driver.step()
        driver.add("second", prompt)  # while the first still uses the same blocks
        scheduled = driver.step()
        row = scheduled.request_ids.index("second")
        assert scheduled.num_scheduled_tokens[row] == 1
        assert scheduled.num_computed_tokens[row] == length - 1
        assert scheduled.attend_only == ({"second"} if length > 1 else frozenset())
        driver.run()
        assert driver.records["second"].num_cached_tokens == length - 1
        driver.check_answers()

    def test_the_next_token_goes_to_a_block_of_its_own(self) -> None:
        driver = Driver()
        prompt = random_prompt(1, 8)
        driver.add("first", prompt)
        driver.run()
        driver.add("second", prompt)
        scheduled = driver.step()
        assert len(scheduled.new[0].block_ids) == 2
        scheduled = driver.step()
        assert len(scheduled.new_block_ids["second"]) == 1
        driver.run()
        driver.check_answers()


class TestNeverComputedBlocksAreNotFound:
    """A8: a block was findable though the chunk that should compute it was undone."""

    @DEPTHS
    def test_a_chunk_that_gives_way_in_its_own_step_leaves_no_trace(self, depth: int) -> None:
        driver = Driver(num_blocks=14, max_num_batched_tokens=4, async_depth=depth)
        driver.add("urgent", random_prompt(1, 4), priority=-1, max_tokens=40)
        driver.step()
        driver.add("lesser", random_prompt(2, 40), max_tokens=4)
        driver.step_until_preempted()
        lesser_ran = sum(
            count
            for step in driver.runner.steps
            for name, count in zip(step.request_ids, step.num_scheduled_tokens, strict=True)
            if name == "lesser"
        )
        assert 0 < lesser_ran < 40, "it was in the middle of its prompt"
        driver.add("lesser's twin", random_prompt(2, 40), max_tokens=4)
        driver.run()
        assert driver.records["lesser"].num_preemptions >= 1
        assert driver.records["urgent"].num_preemptions == 0
        driver.check_answers()


class TestSaltsKeepCachesApart:
    """A9: equal tokens under different salts must not share."""

    def test_no_hit_across_salts_and_hits_within(self) -> None:
        driver = Driver()
        prompt = random_prompt(1, 21)
        for name, salt in (("a", "a"), ("b", "b"), ("none", None), ("empty", "")):
            driver.add(name, prompt, cache_salt=salt)
            driver.run()
            assert driver.records[name].num_cached_tokens == 0, name
        driver.add("a again", prompt, cache_salt="a")
        driver.run()
        assert driver.records["a again"].num_cached_tokens == 20
        driver.check_answers()


class TestAdaptersKeepCachesApart:
    """A9: an adapter changes the KV of equal tokens; the fake runner's KV changes with it."""

    def test_no_hit_across_adapters_and_hits_within(self) -> None:
        driver = Driver()
        prompt = random_prompt(1, 21)
        for name in ("x", "y", None):
            driver.add(f"{name}", prompt, adapter=name)
            driver.run()
            assert driver.records[f"{name}"].num_cached_tokens == 0
        driver.add("x again", prompt, adapter="x")
        driver.run()
        assert driver.records["x again"].num_cached_tokens == 20
        assert driver.tokens["x"] == driver.tokens["x again"] != driver.tokens["y"]


class TestLongPromptsUnderPressure:
    """B1: a long prompt was admitted in part, preempted, resumed, preempted, and so on."""

    def test_it_is_not_admitted_until_it_fits(self) -> None:
        driver = Driver(num_blocks=65, max_num_batched_tokens=18, max_num_seqs=16)
        for i in range(10):
            driver.add(f"decode {i}", random_prompt(i, 17), max_tokens=30)
        while driver.scheduler.stats().num_used_blocks < 50:
            driver.step()
        driver.add("long", random_prompt(99, 160), max_tokens=4)
        driver.run()
        for step in driver.runner.steps:
            for new in step.new:
                assert len(new.block_ids) * 4 >= len(new.token_ids)
        assert driver.records["long"].num_preemptions <= 1
        assert driver.scheduler.stats().num_preemptions <= 10
        driver.check_answers()


class TestPreemptionAfterOutput:
    """B2, B3: tokens were lost or came twice when a request with output was preempted."""

    @DEPTHS
    def test_what_was_sent_before_is_neither_lost_nor_sent_again(self, depth: int) -> None:
        driver = Driver(num_blocks=17, async_depth=depth)
        driver.add("old", random_prompt(1, 8), max_tokens=50)
        driver.step()
        driver.add("new", random_prompt(2, 4), max_tokens=40)
        driver.step_until_preempted()
        num_before = len(driver.tokens["new"])
        assert num_before >= 20
        driver.run()
        resumed = [n for s in driver.runner.steps for n in s.new if n.request_id == "new"][1]
        assert resumed.num_prompt_tokens == 4, "penalties tell prompt and output apart by it"
        assert len(resumed.token_ids) >= 4 + num_before
        assert driver.records["new"].num_generated_tokens == 40
        driver.check_answers()

    @DEPTHS
    def test_many_long_requests_in_a_small_pool_equal_the_oracle(self, depth: int) -> None:
        driver = Driver(num_blocks=33, max_num_seqs=16, async_depth=depth)
        for i in range(32):
            driver.add(str(i), random_prompt(i, 5 + i % 11), max_tokens=20 + i)
        driver.run()
        assert driver.scheduler.stats().num_preemptions > 5
        driver.check_answers()


class TestOutputOutgrowsThePool:
    """B7: a lone request larger than the pool hit an assertion."""

    @DEPTHS
    def test_it_ends_with_length_and_the_engine_goes_on(self, depth: int) -> None:
        driver = Driver(num_blocks=5, async_depth=depth)
        driver.add("r", [1, 2, 3], max_tokens=100)
        driver.run()
        assert driver.records["r"].finish_reason is FinishReason.LENGTH
        assert driver.records["r"].num_generated_tokens == 14
        driver.add("next", [4, 5, 6])
        driver.run()
        driver.check_answers()


class TestPromptLargerThanTheCache:
    """D1: it waited for ever, and everybody behind it."""

    def test_it_is_refused_and_the_next_is_served(self) -> None:
        driver = Driver(num_blocks=251, max_model_len=4000)
        with pytest.raises(ContextTooLong, match="holds 1000 tokens"):
            driver.add("large", random_prompt(1, 2000))
        driver.add("short", [1, 2, 3])
        driver.run()
        driver.check_answers()


class TestTwoThatDoNotFitTogether:
    """D2: each held half of what it needed and waited for the other."""

    @DEPTHS
    def test_they_run_one_after_the_other(self, depth: int) -> None:
        driver = Driver(num_blocks=21, max_num_batched_tokens=8, async_depth=depth)
        driver.add("A", random_prompt(1, 48), max_tokens=4)
        driver.add("B", random_prompt(2, 48), max_tokens=4)
        driver.run(max_steps=100)
        assert driver.scheduler.stats().num_preemptions == 0
        driver.check_answers()
