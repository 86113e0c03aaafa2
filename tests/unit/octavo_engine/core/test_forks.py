"""Several answers to one prompt (n > 1): the prompt is computed once, its blocks are shared."""

import pytest

from octavo_engine.core.request import FinishReason
from octavo_engine.errors import Overloaded
from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])
CACHING = pytest.mark.parametrize(
    "prefix_caching", [pytest.param(True, id="caching"), pytest.param(False, id="no caching")]
)


def tokens_computed(driver: Driver, request_id: str) -> int:
    return sum(
        count
        for step in driver.runner.steps
        for name, count in zip(step.request_ids, step.num_scheduled_tokens, strict=True)
        if name == request_id
    )


def blocks_at_entry(driver: Driver, request_id: str) -> list[int]:
    return next(
        new.block_ids
        for step in driver.runner.steps
        for new in step.new
        if new.request_id == request_id
    )


@DEPTHS
@CACHING
@pytest.mark.parametrize(
    ("prompt_len", "num_shared_blocks"),
    [
        pytest.param(3, 0, id="less than a block"),
        pytest.param(10, 2, id="a partial last block is computed by each"),
        pytest.param(12, 3, id="whole blocks cost each one token"),
    ],
)
def test_choices_share_the_full_blocks_of_the_prompt(
    prompt_len: int, num_shared_blocks: int, prefix_caching: bool, depth: int
) -> None:
    driver = Driver(async_depth=depth, prefix_caching=prefix_caching)
    prompt = range(prompt_len)
    driver.add("first", prompt)
    for i in range(3):
        driver.add(f"fork {i}", prompt, fork_of="first", seed=i)
    driver.run()
    shared = blocks_at_entry(driver, "first")[:num_shared_blocks]
    for i in range(3):
        assert blocks_at_entry(driver, f"fork {i}")[:num_shared_blocks] == shared
        num_cached = min(4 * num_shared_blocks, prompt_len - 1)
        assert driver.records[f"fork {i}"].num_cached_tokens == num_cached
        assert tokens_computed(driver, f"fork {i}") == prompt_len - num_cached + 7
    driver.check_answers()


@DEPTHS
@CACHING
def test_forks_begin_in_the_step_after_the_prompt_s_last_chunk(
    prefix_caching: bool, depth: int
) -> None:
    driver = Driver(async_depth=depth, max_num_batched_tokens=8, prefix_caching=prefix_caching)
    driver.add("first", range(20))
    driver.add("fork", range(20), fork_of="first")
    assert driver.scheduler.stats().num_waiting == 2
    for _ in range(3):
        assert driver.step().request_ids == ["first"]
    scheduled = driver.step()
    assert set(scheduled.request_ids) == {"first", "fork"}
    assert scheduled.attend_only == {"fork"}
    driver.run()
    driver.check_answers()


def test_a_fork_that_comes_later_shares_at_once() -> None:
    driver = Driver(prefix_caching=False)
    driver.add("first", range(10), max_tokens=30)
    driver.step()
    driver.step()
    driver.add("fork", range(10), fork_of="first")
    assert "fork" in driver.step().request_ids
    driver.run()
    assert driver.records["fork"].num_cached_tokens == 8
    driver.check_answers()


class TestSourceIsGone:
    @DEPTHS
    @CACHING
    @pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
    def test_the_next_choice_computes_the_prompt_and_the_others_share_its_blocks(
        self, num_steps: int, prefix_caching: bool, depth: int
    ) -> None:
        driver = Driver(async_depth=depth, max_num_batched_tokens=8, prefix_caching=prefix_caching)
        driver.add("first", range(20), max_tokens=30)
        for name in ("second", "third", "fourth"):
            driver.add(name, range(20), fork_of="first", max_tokens=20)
        for _ in range(num_steps):
            driver.step()
        driver.finish("first")
        driver.run()
        assert driver.records["third"].num_cached_tokens >= 19
        assert driver.records["fourth"].num_cached_tokens >= 19
        driver.check_answers()

    @DEPTHS
    @CACHING
    def test_in_the_one_step_between_each_goes_its_own_way(
        self, prefix_caching: bool, depth: int
    ) -> None:
        """The prompt is computed and its forks are to enter next, but its blocks are given back."""
        driver = Driver(async_depth=depth, max_num_batched_tokens=8, prefix_caching=prefix_caching)
        driver.add("first", range(20), max_tokens=30)
        driver.add("second", range(20), fork_of="first")
        for _ in range(3):
            driver.step()
        driver.finish("first")
        driver.run()
        assert driver.records["second"].num_cached_tokens == (19 if prefix_caching else 0)
        driver.check_answers()

    @CACHING
    def test_a_source_of_one_token_is_gone_before_its_forks_enter(
        self, prefix_caching: bool
    ) -> None:
        driver = Driver(prefix_caching=prefix_caching)
        for name in ("a", "b", "c"):
            driver.add(name, range(12), fork_of=None if name == "a" else "a", max_tokens=1)
        driver.run()
        assert driver.records["c"].num_cached_tokens == (11 if prefix_caching else 0)
        driver.check_answers()

    def test_a_fork_of_one_that_ended_long_ago_is_like_any_other_request(self) -> None:
        driver = Driver(prefix_caching=False)
        driver.add("first", range(12))
        driver.run()
        driver.add("fork", range(12), fork_of="first")
        driver.run()
        assert driver.records["fork"].num_cached_tokens == 0
        driver.check_answers()

    @DEPTHS
    @CACHING
    def test_a_preempted_source_is_not_shared_from(self, prefix_caching: bool, depth: int) -> None:
        driver = Driver(
            num_blocks=12, async_depth=depth, prefix_caching=prefix_caching, max_num_seqs=2
        )
        driver.add("urgent", range(50, 58), priority=-1, max_tokens=36)
        driver.step()
        driver.add("first", range(8), max_tokens=34)
        driver.add("fork", range(8), fork_of="first", max_tokens=4, seed=5)
        driver.step_until_preempted()
        assert driver.scheduler.stats().num_waiting == 2
        driver.run()
        assert driver.records["first"].num_preemptions >= 1
        driver.check_answers()

    @DEPTHS
    @CACHING
    @pytest.mark.parametrize("prompt_len", [16, 18])
    def test_a_preempted_fork_shares_again(
        self, prompt_len: int, prefix_caching: bool, depth: int
    ) -> None:
        driver = Driver(num_blocks=20, async_depth=depth, prefix_caching=prefix_caching)
        driver.add("first", range(prompt_len), max_tokens=36)
        driver.add("fork", range(prompt_len), fork_of="first", max_tokens=30, seed=1)
        driver.step()
        driver.add("other", range(50, 54), priority=-1, max_tokens=22)
        assert "fork" in driver.step_until_preempted().dropped
        driver.run()
        resumed = [(s, n) for s in driver.runner.steps for n in s.new if n.request_id == "fork"][1]
        assert "first" in resumed[0].request_ids, "the other has ended, the first still runs"
        assert len(resumed[1].token_ids) > prompt_len + 4
        assert resumed[1].block_ids[:4] == blocks_at_entry(driver, "first")[:4]
        at = resumed[0].request_ids.index("fork")
        assert resumed[0].num_computed_tokens[at] >= 16
        driver.check_answers()

    @DEPTHS
    def test_a_held_fork_can_be_aborted(self, depth: int) -> None:
        driver = Driver(async_depth=depth, max_num_batched_tokens=8)
        driver.add("first", range(20))
        driver.add("fork", range(20), fork_of="first")
        driver.add("other", range(20), fork_of="first")
        driver.step()
        driver.finish("fork")
        driver.run()
        assert driver.records["fork"].first_scheduled_s is None
        assert driver.records["other"].num_cached_tokens == 19
        driver.check_answers()


def test_a_source_whose_row_fails_does_not_take_its_forks_along() -> None:
    driver = Driver(find_failure=lambda name, history: "wrong" if name == "first" else None)
    driver.add("first", range(12))
    driver.add("fork", range(12), fork_of="first")
    driver.run()
    assert driver.records["first"].finish_reason is FinishReason.ERROR
    assert driver.records["fork"].finish_reason is FinishReason.LENGTH
    assert driver.records["fork"].num_cached_tokens == 0, "what went wrong is not shared"
    driver.check_answers()


class TestManyChoices:
    """E3: with n > 1, choices were lost, and what ended early kept its memory."""

    @DEPTHS
    def test_the_blocks_of_a_finished_choice_are_free_at_once(self, depth: int) -> None:
        driver = Driver(async_depth=depth, prefix_caching=False, num_blocks=100)
        driver.add("0", range(16), max_tokens=60)
        for i in range(1, 8):
            driver.add(str(i), range(16), fork_of="0", max_tokens=60, seed=i)
        for _ in range(30):
            driver.step()
        before = driver.scheduler.stats().num_used_blocks
        driver.finish("3", FinishReason.STOP)
        after = driver.scheduler.stats().num_used_blocks
        own = -(-(16 + len(driver.tokens["3"]) + depth - 1) // 4) - 4
        assert before - after == own, "its own blocks are free, the prompt's are still used"
        driver.run()
        driver.check_answers()

    def test_each_choice_counts_as_a_request_in_the_queue_but_the_prompt_s_tokens_count_once(
        self,
    ) -> None:
        driver = Driver(max_num_seqs=2, max_queued_requests=3, max_queued_tokens=20)
        driver.add("0", range(16))
        for i in range(1, 5):
            driver.add(str(i), range(16), fork_of="0")
        assert driver.scheduler.stats().num_waiting_tokens == 16
        with pytest.raises(Overloaded, match="queue of 3 is full"):
            driver.add("5", range(16), fork_of="0")
        driver.run()
        driver.check_answers()

    def test_when_the_first_leaves_before_it_began_the_prompt_s_tokens_still_wait(self) -> None:
        driver = Driver(max_queued_tokens=20)
        driver.add("0", range(16))
        driver.add("1", range(16), fork_of="0")
        driver.add("2", range(16), fork_of="0")
        driver.finish("0")
        assert driver.scheduler.stats().num_waiting_tokens == 16
        with pytest.raises(Overloaded):
            driver.add("other", range(16))
        driver.run()
        assert driver.records["2"].num_cached_tokens == 15
        driver.check_answers()

    def test_forks_are_neither_queries_nor_hits_of_the_prefix_cache(self) -> None:
        driver = Driver()
        driver.add("0", range(16))
        for i in range(1, 4):
            driver.add(str(i), range(16), fork_of="0")
        driver.run()
        stats = driver.scheduler.stats()
        assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (16, 0)
        assert stats.prompt_tokens == 4 * 16
        assert driver.records["0"].num_cached_tokens == 0
        assert driver.records["1"].num_cached_tokens == 15


def test_a_fork_with_another_prompt_or_salt_is_a_mistake_of_ours() -> None:
    driver = Driver()
    driver.add("0", range(16), cache_salt="a")
    with pytest.raises(AssertionError, match="another prompt"):
        driver.add("1", range(15), cache_salt="a", fork_of="0")
    with pytest.raises(AssertionError, match="another salt"):
        driver.add("1", range(16), fork_of="0")
