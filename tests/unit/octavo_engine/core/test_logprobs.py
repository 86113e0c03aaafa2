"""Log-probabilities on their way through the scheduler: none lost, none twice.

`check_answers` compares all of them with an oracle that knows no scheduler.
"""

import pytest

from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


@DEPTHS
@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_each_generated_token_has_its_own(num_logprobs: int, depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("asked", range(8), num_logprobs=num_logprobs)
    driver.add("not asked", range(8))
    driver.run()
    assert len(driver.logprobs["asked"]) == 8
    assert driver.logprobs["not asked"] == []
    assert all(len(found.top) == num_logprobs for found in driver.logprobs["asked"])
    driver.check_answers()


@DEPTHS
def test_a_prompt_in_chunks_brings_each_position_once(depth: int) -> None:
    driver = Driver(async_depth=depth, max_num_batched_tokens=8)
    driver.add("r", range(29), num_prompt_logprobs=2)
    driver.run()
    assert [found.token_id for found in driver.prompt_logprobs["r"]] == list(range(1, 29))
    driver.check_answers()


def test_a_prompt_of_one_token_has_none() -> None:
    driver = Driver()
    driver.add("r", [5], num_prompt_logprobs=2)
    driver.run()
    assert driver.prompt_logprobs["r"] == []
    driver.check_answers()


@DEPTHS
def test_all_positions_are_computed_though_the_prompt_is_cached(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("first", range(16))
    driver.run()
    driver.add("asked", range(16), num_prompt_logprobs=1)
    driver.run()
    assert driver.records["asked"].num_cached_tokens == 0
    assert len(driver.prompt_logprobs["asked"]) == 15
    stats = driver.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (16, 0)
    driver.add("not asked", range(16))
    driver.run()
    assert driver.records["not asked"].num_cached_tokens == 15
    driver.check_answers()


@DEPTHS
def test_preempted_in_the_middle_of_the_prompt_it_goes_on_where_it_was(depth: int) -> None:
    driver = Driver(num_blocks=14, max_num_batched_tokens=4, async_depth=depth)
    driver.add("urgent", range(50, 54), priority=-1, max_tokens=40)
    driver.step()
    driver.add("r", range(40), num_prompt_logprobs=1, num_logprobs=1, max_tokens=4)
    driver.step_until_preempted()
    assert 0 < len(driver.prompt_logprobs["r"]) < 39, "in the middle of its prompt"
    driver.run()
    assert driver.records["r"].num_preemptions >= 1
    driver.check_answers()


@DEPTHS
def test_preempted_after_its_prompt_it_may_reuse_what_it_computed(depth: int) -> None:
    driver = Driver(num_blocks=17, async_depth=depth)
    driver.add("old", range(50, 58), max_tokens=50)
    driver.step()
    driver.add("new", range(9), max_tokens=40, num_prompt_logprobs=0, num_logprobs=2)
    scheduled = driver.step_until_preempted()
    assert "new" in scheduled.dropped
    driver.run()
    resumed = [
        (step, new) for step in driver.runner.steps for new in step.new if new.request_id == "new"
    ][1][0]
    assert resumed.num_computed_tokens[resumed.request_ids.index("new")] > 0
    assert len(driver.prompt_logprobs["new"]) == 8
    assert len(driver.logprobs["new"]) == 40
    driver.check_answers()


@DEPTHS
def test_a_fork_that_asks_for_the_prompt_s_computes_it_all(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("first", range(16), num_prompt_logprobs=1)
    driver.add("second", range(16), num_prompt_logprobs=1, fork_of="first")
    driver.add("third", range(16), fork_of="first")
    driver.run()
    assert driver.records["second"].num_cached_tokens == 0
    assert driver.records["third"].num_cached_tokens == 15
    driver.check_answers()


@DEPTHS
def test_a_failed_row_brings_none(depth: int) -> None:
    driver = Driver(
        async_depth=depth,
        max_num_batched_tokens=8,
        find_failure=lambda name, history: "wrong" if len(history) == 16 else None,
    )
    driver.add("r", range(24), num_prompt_logprobs=1, num_logprobs=1)
    driver.run()
    assert driver.records["r"].error == "wrong"
    assert len(driver.prompt_logprobs["r"]) == 8
    driver.check_answers()
