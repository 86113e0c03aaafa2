from collections.abc import Sequence

import pytest

from octavo_engine.core.messages import SchedulerOutput
from octavo_engine.core.request import FinishReason
from octavo_engine.errors import ContextTooLong, Overloaded
from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def rows(scheduled: SchedulerOutput) -> dict[str, int]:
    return dict(zip(scheduled.request_ids, scheduled.num_scheduled_tokens, strict=True))


@DEPTHS
def test_two_requests_decode_together_and_a_seat_is_taken_at_the_very_next_step(depth: int) -> None:
    """A needs 8 tokens, B 64; A leaves after 8 steps and C sits in its seat in step 9."""
    driver = Driver(max_num_seqs=2, async_depth=depth)
    driver.add("A", [1, 2, 3], max_tokens=8)
    driver.add("B", [4, 5, 6], max_tokens=64)
    driver.add("C", [7, 8, 9], max_tokens=8)
    for _ in range(8):
        assert set(rows(driver.step())) == {"A", "B"}
    scheduled = driver.step()
    assert set(rows(scheduled)) == {"B", "C"}
    assert "A" in scheduled.dropped
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0
    driver.check_answers()


def test_a_decode_and_a_chunk_of_a_prompt_share_a_step() -> None:
    driver = Driver(max_num_batched_tokens=16)
    driver.add("short", [1, 2, 3])
    driver.step()
    driver.add("long", range(40))
    assert rows(driver.step()) == {"short": 1, "long": 15}
    assert rows(driver.step()) == {"short": 1, "long": 15}
    assert rows(driver.step()) == {"short": 1, "long": 10}
    assert rows(driver.step()) == {"short": 1, "long": 1}
    driver.run()
    driver.check_answers()


def test_every_running_sequence_gets_a_token_while_an_older_prompt_is_computed() -> None:
    driver = Driver(max_num_batched_tokens=16, max_num_seqs=3)
    driver.add("long", range(100), priority=-1)
    driver.step()
    driver.add("short", [1, 2, 3], max_tokens=50)
    while "short" not in rows(driver.step()):
        pass
    driver.add("urgent", range(200, 260), priority=-2)
    driver.step()
    scheduled = driver.step()
    assert rows(scheduled)["short"] == 1
    assert scheduled.total_tokens == 16
    driver.run()
    driver.check_answers()


@DEPTHS
def test_a_prefix_is_reused(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("first", range(10))
    driver.run()
    driver.add("second", [*range(9), 99, 98])
    driver.run()
    assert driver.records["second"].num_cached_tokens == 8
    stats = driver.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (21, 8)
    driver.check_answers()


def test_generated_tokens_are_reused_too() -> None:
    driver = Driver()
    driver.add("first", [1, 2, 3], max_tokens=9)
    driver.run()
    driver.add("next turn", [1, 2, 3, *driver.tokens["first"], 77])
    driver.run()
    # 12 tokens, of which the last was never fed back: its block was never full
    assert driver.records["next turn"].num_cached_tokens == 8
    driver.check_answers()


def test_requests_of_one_step_do_not_hit_what_that_step_is_to_compute() -> None:
    driver = Driver()
    driver.add("A", range(12))
    driver.add("B", range(12))
    driver.step()
    assert driver.scheduler.stats().prefix_hit_tokens == 0
    driver.run()
    driver.check_answers()


def test_with_prefix_caching_off_nothing_is_asked_or_hit() -> None:
    driver = Driver(prefix_caching=False)
    for name in ("A", "B"):
        driver.add(name, range(12))
        driver.run()
    stats = driver.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (0, 0)
    driver.check_answers()


@DEPTHS
def test_the_newest_gives_way_and_nobody_enters_in_that_step(depth: int) -> None:
    driver = Driver(num_blocks=9, async_depth=depth, prefix_caching=False)
    driver.add("old", range(8), max_tokens=20)
    driver.step()
    driver.add("new", range(50, 62), max_tokens=8)
    while driver.scheduler.stats().num_used_blocks < 6:
        driver.step()
    driver.add("small", [1], priority=-1)  # first in the queue, and room for it is gone
    scheduled = driver.step_until_preempted()
    assert rows(scheduled) == {"old": 1}
    assert "new" in scheduled.dropped
    assert scheduled.new == []
    assert [new.request_id for new in driver.step().new] == ["small"]
    driver.run()
    assert driver.records["new"].num_preemptions >= 1
    assert driver.records["old"].num_preemptions == 0
    driver.check_answers()


def test_a_newcomer_leaves_a_block_for_each_that_runs() -> None:
    driver = Driver(num_blocks=9)
    driver.add("old", range(8), max_tokens=8)
    driver.step()
    driver.add("new", range(50, 70))  # five blocks; two are used and the third is soon needed
    driver.step()
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0
    started = driver.records["new"].first_scheduled_s
    assert started is not None
    assert started > driver.records["old"].finished_s
    driver.check_answers()


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    driver = Driver(num_blocks=9)
    driver.add("old", range(8), max_tokens=20)
    driver.step()
    driver.add("new", range(50, 62), max_tokens=8)
    driver.run()
    assert driver.records["new"].num_preemptions == 1
    resumed = [(s, n) for s in driver.runner.steps for n in s.new if n.request_id == "new"][1]
    assert resumed[0].num_computed_tokens[resumed[0].request_ids.index("new")] > 0
    assert driver.records["new"].num_cached_tokens == 0, "only the first look-up counts"
    assert driver.scheduler.stats().prefix_query_tokens == 20
    driver.check_answers()


def test_lower_priority_numbers_are_served_first_then_the_earlier() -> None:
    driver = Driver(max_num_seqs=1)
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        driver.add(name, [1, 2, 3], priority=priority, max_tokens=1)
    order = [driver.step().request_ids for _ in range(4)]
    assert order == [["urgent"], ["first"], ["second"], ["late"]]


@pytest.mark.parametrize(
    ("options", "sampling", "prompt_len", "num_generated"),
    [
        pytest.param({}, {"max_tokens": 7}, 5, 7, id="max_tokens"),
        pytest.param({"max_model_len": 32}, {"max_tokens": 100}, 30, 2, id="the context"),
        pytest.param({"num_blocks": 9}, {"max_tokens": 100}, 30, 3, id="the whole cache"),
    ],
)
@DEPTHS
def test_a_request_ends_with_length_by(
    options: dict[str, int],
    sampling: dict[str, int],
    prompt_len: int,
    num_generated: int,
    depth: int,
) -> None:
    driver = Driver(async_depth=depth, **options)  # type: ignore[arg-type]  # of several types
    driver.add("r", range(prompt_len), **sampling)
    driver.run()
    record = driver.records["r"]
    assert (record.finish_reason, record.num_generated_tokens) == (
        FinishReason.LENGTH,
        num_generated,
    )
    driver.check_answers()


@DEPTHS
def test_a_stop_token_is_delivered_and_counted_and_ends_the_request(depth: int) -> None:
    driver = Driver(async_depth=depth, choose_token=lambda history: len(history))
    driver.add("r", [0, 0, 0], stop_token_ids=frozenset({6}), max_tokens=50)
    driver.run()
    assert driver.tokens["r"] == [3, 4, 5, 6]
    record = driver.records["r"]
    assert (record.finish_reason, record.num_generated_tokens) == (FinishReason.STOP, 4)


def test_a_stop_token_before_min_tokens_is_ignored() -> None:
    driver = Driver(choose_token=lambda history: 6)
    driver.add("r", [0, 0, 0], stop_token_ids=frozenset({6}), min_tokens=3)
    driver.run()
    assert driver.tokens["r"] == [6, 6, 6]
    assert driver.records["r"].finish_reason is FinishReason.STOP


@DEPTHS
def test_a_failed_row_ends_with_an_error_and_the_others_go_on(depth: int) -> None:
    def fail(request_id: str, history: Sequence[int]) -> str | None:
        return "logits are not numbers" if request_id == "bad" and len(history) == 6 else None

    driver = Driver(async_depth=depth, find_failure=fail)
    driver.add("bad", [1, 2, 3, 4])
    driver.add("good", [5, 6, 7, 8])
    driver.run()
    record = driver.records["bad"]
    assert (record.finish_reason, record.error) == (FinishReason.ERROR, "logits are not numbers")
    assert len(driver.tokens["bad"]) == 2
    assert driver.records["good"].finish_reason is FinishReason.LENGTH
    driver.add("again", [1, 2, 3, 4])
    driver.run()
    assert driver.records["again"].num_cached_tokens == 0, "what went wrong must not be reused"
    driver.check_answers()


class TestFinishFromOutside:
    @DEPTHS
    def test_an_abort_frees_the_blocks_at_once(self, depth: int) -> None:
        driver = Driver(async_depth=depth)
        driver.add("r", range(20), max_tokens=50)
        driver.step()
        driver.step()
        driver.finish("r")
        stats = driver.scheduler.stats()
        assert (stats.num_running, stats.num_used_blocks) == (0, 0)
        driver.run()
        assert driver.records["r"].finish_reason is FinishReason.ABORT
        driver.check_answers()

    def test_it_is_idempotent(self) -> None:
        driver = Driver()
        driver.add("r", range(20))
        assert driver.scheduler.finish("r", FinishReason.ABORT, 1.0) is not None
        assert driver.scheduler.finish("r", FinishReason.ABORT, 1.0) is None
        assert driver.scheduler.finish("nobody", FinishReason.ABORT, 1.0) is None
        assert driver.scheduler.stats().finished[FinishReason.ABORT] == 1

    def test_a_waiting_request_leaves_the_queue_and_the_runner_never_hears_of_it(self) -> None:
        driver = Driver(max_num_seqs=1)
        driver.add("A", [1, 2, 3])
        driver.add("B", [4, 5, 6])
        driver.step()
        driver.finish("B")
        driver.run()
        assert all("B" not in step.dropped for step in driver.runner.steps)
        assert driver.records["B"].first_scheduled_s is None

    def test_a_preempted_request_leaves_the_queue(self) -> None:
        driver = Driver(num_blocks=9)
        driver.add("old", range(8), max_tokens=20)
        driver.add("new", range(50, 62), max_tokens=8)
        driver.step_until_preempted()
        driver.finish("new")
        driver.run()
        assert driver.records["new"].finish_reason is FinishReason.ABORT
        driver.check_answers()

    @DEPTHS
    def test_between_schedule_and_update_the_step_s_token_is_not_reported(self, depth: int) -> None:
        driver = Driver(async_depth=depth)
        driver.add("A", range(8))
        driver.add("B", range(8, 16))
        scheduled = driver.scheduler.schedule(1.0)
        driver.finish("A")
        driver.pending.append((scheduled, driver.runner.dispatch(scheduled)))
        driver.add("C", range(16, 24))
        while len(driver.pending) > depth:
            driver.take_result()
        assert driver.tokens["A"] == []
        driver.run()
        driver.check_answers()

    @DEPTHS
    def test_a_stop_string_ends_with_stop(self, depth: int) -> None:
        driver = Driver(async_depth=depth)
        driver.add("r", range(8), max_tokens=100)
        for _ in range(5):
            driver.step()
        driver.finish("r", FinishReason.STOP)
        driver.run()
        assert driver.records["r"].finish_reason is FinishReason.STOP
        assert driver.records["r"].num_generated_tokens == 5 - depth


class TestQueue:
    def test_it_is_bounded_beyond_the_free_seats(self) -> None:
        driver = Driver(max_num_seqs=2, max_queued_requests=3)
        for i in range(5):
            driver.add(str(i), [1, 2, 3])
        with pytest.raises(Overloaded, match="queue of 3 is full") as error:
            driver.add("one too many", [1, 2, 3])
        assert error.value.retry_after_s >= 1
        assert driver.scheduler.stats().num_waiting == 5
        driver.run()
        driver.add("later", [1, 2, 3])
        driver.run()
        driver.check_answers()


class TestAdmissible:
    def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_the_numbers(self) -> None:
        driver = Driver(max_model_len=128)
        driver.scheduler.check_admissible(127)
        for num_tokens in (128, 200):
            with pytest.raises(
                ContextTooLong,
                match=f"maximum context length is 128 tokens. However, you requested {num_tokens}",
            ):
                driver.scheduler.check_admissible(num_tokens)

    def test_a_prompt_that_the_cache_cannot_hold_is_refused_with_the_numbers(self) -> None:
        driver = Driver(num_blocks=9)
        driver.scheduler.check_admissible(32)
        with pytest.raises(ContextTooLong, match="you requested 33 tokens"):
            driver.scheduler.check_admissible(33)

    def test_add_refuses_it_too(self) -> None:
        with pytest.raises(ContextTooLong):
            Driver(max_model_len=16).add("r", range(16))


def test_a_record_tells_the_times_of_its_request() -> None:
    driver = Driver(max_num_batched_tokens=8)
    driver.now = 10.0
    driver.add("r", range(12), max_tokens=3)
    driver.run()
    record = driver.records["r"]
    assert (record.arrival_s, record.first_scheduled_s) == (10.0, 11.0)
    assert (record.first_token_s, record.last_token_s, record.finished_s) == (12.0, 14.0, 14.0)


def test_seats_never_outnumber_the_tokens_of_a_step() -> None:
    driver = Driver(max_num_seqs=8, max_num_batched_tokens=3)
    for i in range(6):
        driver.add(str(i), [i, i + 1])
    driver.run()
    driver.check_answers()
    assert max(len(step.request_ids) for step in driver.runner.steps) == 3
