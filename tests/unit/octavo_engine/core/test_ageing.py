"""A more urgent priority goes first for a while only, counted in steps of a second each."""

from collections import Counter

import pytest

from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def began_s(driver: Driver, request_id: str) -> float:
    began = driver.records[request_id].first_scheduled_s
    assert began is not None
    return began


class Flood:
    """A caller that keeps the queue full of requests, each more urgent than those before it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.num_added = 0

    def fill(self, num_waiting: int = 6, *, prompt: int = 4, max_tokens: int = 5) -> None:
        while self._driver.scheduler.stats().num_waiting < num_waiting:
            self._driver.add(
                f"urgent {self.num_added}",
                [self.num_added % 900] * prompt,
                priority=-self.num_added,
                max_tokens=max_tokens,
            )
            self.num_added += 1

    def run_until_ended(self, request_id: str, **options: int) -> None:
        while request_id not in self._driver.records:
            self.fill(**options)
            self._driver.step()
            assert self._driver.now < 300, f"{request_id} starves"


@DEPTHS
def test_it_begins_within_the_wait_and_the_time_of_one_answer(depth: int) -> None:
    driver = Driver(max_num_seqs=2, priority_wait_s=20.0, async_depth=depth)
    flood = Flood(driver)
    flood.fill()
    driver.add("patient", range(8), max_tokens=8)
    flood.run_until_ended("patient")
    assert 20 <= began_s(driver, "patient") <= 20 + 1 + 5
    assert flood.num_added > 10, "more urgent ones went before it"
    driver.run()
    driver.check_answers()


def test_until_then_the_more_urgent_go_first() -> None:
    driver = Driver(max_num_seqs=2, priority_wait_s=1e9)
    flood = Flood(driver)
    flood.fill()
    driver.add("patient", range(8), max_tokens=8)
    for _ in range(200):
        flood.fill()
        driver.step()
    assert "patient" not in driver.records
    driver.run()
    assert began_s(driver, "patient") > 200
    driver.check_answers()


@DEPTHS
def test_a_large_one_gets_its_blocks_too(depth: int) -> None:
    """Once it is old nobody more urgent enters before it, so blocks add up for it."""
    driver = Driver(num_blocks=33, priority_wait_s=20.0, async_depth=depth, prefix_caching=False)
    flood = Flood(driver)
    flood.fill()
    driver.add("large", range(100), max_tokens=4)  # 25 of 32 blocks
    flood.run_until_ended("large")
    assert 20 <= began_s(driver, "large") <= 20 + 12
    driver.run()
    driver.check_answers()


@DEPTHS
def test_a_prompt_that_is_being_computed_gets_its_share(depth: int) -> None:
    """It has a seat before the flood comes, and one token a step while others are more urgent."""
    driver = Driver(
        num_blocks=400, max_num_batched_tokens=32, priority_wait_s=20.0, async_depth=depth
    )
    driver.add("long", range(300), max_tokens=2)
    Flood(driver).run_until_ended("long", prompt=30, max_tokens=1)
    of_long = [
        dict(zip(step.request_ids, step.num_scheduled_tokens, strict=True)).get("long", 0)
        for step in driver.runner.steps
    ]
    assert max(of_long[2:19]) < 8, "a little of what the urgent ones leave"
    assert min(of_long[20:26]) >= 10, "its half of each step"
    assert driver.records["long"].finished_s <= 20 + 300 / 12 + depth
    driver.run()
    driver.check_answers()


@DEPTHS
def test_preemption_by_priority_comes_to_an_end(depth: int) -> None:
    """Urgent ones take the blocks of a lesser one again and again, until it is old."""
    driver = Driver(num_blocks=13, priority_wait_s=60.0, async_depth=depth)
    driver.add("lesser", range(8), priority=5, max_tokens=38)
    waves: list[str] = []
    num_tokens = 0
    while "lesser" not in driver.records:
        if len(driver.tokens["lesser"]) >= num_tokens + 2 and set(waves) <= driver.records.keys():
            num_tokens = len(driver.tokens["lesser"])  # it has a seat, and goes on
            for letter in "ab":
                waves.append(f"urgent {len(waves)}{letter}")
                driver.add(waves[-1], [len(waves)] * 12, max_tokens=11)
        driver.step()
        assert driver.now < 300, "the lesser one is preempted for ever"
    resumed_s = [
        float(index + 1)
        for index, step in enumerate(driver.runner.steps)
        for new in step.new
        if new.request_id == "lesser"
    ][1:]
    assert len([at_s for at_s in resumed_s if at_s < 60]) >= 2, "preempted more than once"
    assert len([at_s for at_s in resumed_s if at_s > 60]) <= 1, "but not since it is the oldest"
    assert driver.records["lesser"].finished_s <= 60 + 11 + 38 + depth
    driver.run()
    driver.check_answers()


@DEPTHS
def test_two_that_are_old_do_not_take_each_others_blocks_in_turn(depth: int) -> None:
    driver = Driver(num_blocks=10, priority_wait_s=0.0, async_depth=depth)
    driver.add("first", range(8), priority=7, max_tokens=24)
    driver.step()
    driver.add("second", range(50, 58), priority=-7, max_tokens=24)
    driver.run()
    assert driver.records["first"].num_preemptions == 0
    assert driver.records["second"].num_preemptions == 1
    driver.check_answers()


@DEPTHS
def test_equal_priorities_are_served_as_if_nobody_aged(depth: int) -> None:
    """Steps are the same whatever the wait: sizes, order, overtaking and preemptions."""
    runs = []
    for wait_s in (0.0, 7.0, 1e9):
        driver = Driver(
            num_blocks=24, max_num_batched_tokens=24, priority_wait_s=wait_s, async_depth=depth
        )
        for number in range(30):
            length = [3, 40, 9, 20, 70][number % 5]
            driver.add(f"r{number}", [number] * length, max_tokens=4 + number % 9)
            driver.step()
        driver.run()
        driver.check_answers()
        stats = driver.scheduler.stats()
        runs.append(([s.request_ids for s in driver.runner.steps], stats.num_preemptions))
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][1] > 0


@DEPTHS
def test_choices_of_one_prompt_grow_old_while_they_are_held(depth: int) -> None:
    driver = Driver(
        num_blocks=200, max_num_seqs=3, max_num_batched_tokens=8, priority_wait_s=10.0,
        async_depth=depth,
    )  # fmt: skip
    driver.add("source", range(120), max_tokens=2)
    driver.add("choice", range(120), fork_of="source", max_tokens=4)
    flood = Flood(driver)
    flood.run_until_ended("choice", prompt=4, max_tokens=3)
    assert began_s(driver, "choice") > 10
    later = Counter(
        began_s(driver, name) < began_s(driver, "choice")
        for name, record in driver.records.items()
        if name.startswith("urgent") and record.arrival_s > driver.records["source"].finished_s
    )
    assert later[True] == 0, "nobody who came after the prompt was computed went before it"
    driver.run()
    driver.check_answers()
