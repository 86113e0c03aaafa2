import pytest

from octavo_engine.core.deadlines import Deadlines
from octavo_engine.core.messages import SamplingParams
from octavo_engine.core.request import FinishReason, RequestSpec
from octavo_engine.core.sequence import Sequence
from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


@DEPTHS
def test_a_request_ends_at_its_deadline_with_what_it_has(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("late", range(8), max_tokens=100, deadline_s=10.0)
    driver.add("other", range(8, 16), max_tokens=20)
    driver.run()
    record = driver.records["late"]
    assert (record.finish_reason, record.is_deadline_exceeded) == (FinishReason.ABORT, True)
    assert record.error == "deadline exceeded: not done 10.0 s after its arrival"
    assert record.finished_s == 10.0
    assert record.num_generated_tokens == len(driver.tokens["late"]) == 9 - depth
    assert not driver.records["other"].is_deadline_exceeded
    driver.check_answers()


@DEPTHS
def test_its_seat_and_blocks_are_taken_in_the_same_step(depth: int) -> None:
    driver = Driver(async_depth=depth, max_num_seqs=1)
    driver.add("late", range(8), max_tokens=100, deadline_s=3.0)
    driver.add("next", range(8))
    assert [driver.step().request_ids for _ in range(3)] == [["late"], ["late"], ["next"]]
    driver.run()


@DEPTHS
def test_one_that_never_began_ends_too(depth: int) -> None:
    driver = Driver(async_depth=depth, max_num_seqs=1)
    driver.add("busy", range(8), max_tokens=20)
    driver.add("late", range(8), deadline_s=5.0)
    driver.run()
    assert driver.records["late"].first_scheduled_s is None
    assert driver.records["late"].finished_s == 5.0
    assert driver.scheduler.stats().finished[FinishReason.ABORT] == 1


@DEPTHS
def test_one_that_was_preempted_ends_in_the_queue(depth: int) -> None:
    driver = Driver(async_depth=depth, num_blocks=9)
    driver.add("old", range(8), max_tokens=20)
    driver.step()
    driver.add("new", range(50, 62), max_tokens=18, deadline_s=12.0)
    driver.step_until_preempted()
    driver.run()
    record = driver.records["new"]
    assert record.is_deadline_exceeded
    assert record.num_preemptions == 1
    assert record.num_generated_tokens > 0


@DEPTHS
def test_a_deadline_already_past_costs_no_step(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("late", range(8), deadline_s=-1.0)
    assert driver.step().is_empty
    driver.run()
    assert driver.records["late"].is_deadline_exceeded


@DEPTHS
def test_all_that_are_held_for_a_late_prompt_go_on(depth: int) -> None:
    driver = Driver(async_depth=depth, max_num_batched_tokens=4)
    driver.add("late", range(16), deadline_s=3.0)
    driver.add("fork", range(16), fork_of="late")
    driver.run()
    assert driver.records["late"].is_deadline_exceeded
    assert driver.records["fork"].finish_reason is FinishReason.LENGTH


@DEPTHS
def test_a_client_that_leaves_after_the_deadline_is_not_counted_twice(depth: int) -> None:
    driver = Driver(async_depth=depth)
    driver.add("late", range(8), max_tokens=100, deadline_s=2.0)
    driver.step()
    driver.now = 2.0
    scheduled = driver.scheduler.schedule(driver.now)
    assert driver.scheduler.finish("late", FinishReason.ABORT, 2.0) is None
    driver.pending.append((scheduled, driver.runner.dispatch(scheduled)))
    while len(driver.pending) > depth:
        driver.take_result()
    driver.run()
    assert driver.scheduler.stats().finished[FinishReason.ABORT] == 1


def test_there_is_work_until_the_end_was_told() -> None:
    driver = Driver(async_depth=1)
    driver.add("short", range(4), max_tokens=1)
    driver.add("late", range(4, 8), max_tokens=50, deadline_s=2.0)
    driver.step()
    driver.step()
    driver.finish("short")
    assert driver.scheduler.has_work()
    driver.run()
    assert driver.records["late"].is_deadline_exceeded


def test_requests_that_end_in_time_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for i in range(10_000):
        spec = RequestSpec(
            request_id=str(i),
            prompt_token_ids=[1],
            sampling=SamplingParams(max_tokens=1),
            arrival_s=float(i),
        )
        deadlines.add(i + 600.0, Sequence(spec, number=i, max_total_tokens=2))
        assert deadlines.pop_due(float(i), {}) == []
    assert len(deadlines) <= 64
