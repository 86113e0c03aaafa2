"""Who waits how long, counted in steps. A step of the driver takes a second of its clock."""

import pytest

from support.scheduling import Driver

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def steps_until_begun(driver: Driver, request_id: str) -> float:
    record = driver.records[request_id]
    assert record.first_scheduled_s is not None
    return record.first_scheduled_s - record.arrival_s


def steps_until_first_token(driver: Driver, request_id: str) -> float:
    record = driver.records[request_id]
    assert record.first_token_s is not None
    return record.first_token_s - record.arrival_s


def tokens_of(driver: Driver, request_id: str) -> list[int]:
    """The tokens of a request in each step from its first to its last."""
    counts = [
        dict(zip(step.request_ids, step.num_scheduled_tokens, strict=True)).get(request_id, 0)
        for step in driver.runner.steps
    ]
    while counts and not counts[-1]:
        counts.pop()
    while counts and not counts[0]:
        counts.pop(0)
    return counts


class TestLongPromptBesideShortOnes:
    """L1: one long prompt took every step for itself, and everybody behind it waited."""

    @DEPTHS
    def test_late_short_prompts_begin_within_steps_while_32_chunks_prefill(
        self, depth: int
    ) -> None:
        driver = Driver(
            num_blocks=6000,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            max_model_len=20_000,
            async_depth=depth,
        )
        for i in range(8):
            driver.add(f"stream {i}", range(100 + i, 105 + i), max_tokens=120)
        driver.step()
        driver.add("long", [i % 997 for i in range(32 * 512)], max_tokens=2)
        driver.step()
        driver.step()
        for i in range(20):
            driver.add(f"short {i}", [i] * 50, max_tokens=4)
        driver.run()
        began = [steps_until_begun(driver, f"short {i}") for i in range(20)]
        assert began == sorted(began), "they begin in the order in which they came"
        assert began[0] == 1
        assert began[-1] <= 4, "20 prompts of 50 tokens in half of 504 tokens a step"
        waited = [steps_until_first_token(driver, f"short {i}") for i in range(20)]
        assert max(waited) <= 6 + depth
        of_long = tokens_of(driver, "long")
        assert min(of_long[:-2]) >= 240, "half of every step at least"
        assert len(of_long) <= 36, "four steps more than it would have taken alone"
        for i in range(8):
            assert set(tokens_of(driver, f"stream {i}")) <= {1, 5}, "a token in every step"
        driver.check_answers()

    @DEPTHS
    def test_so_they_do_behind_many_long_prompts(self, depth: int) -> None:
        driver = Driver(
            num_blocks=3000,
            max_num_seqs=64,
            max_num_batched_tokens=64,
            max_model_len=4000,
            async_depth=depth,
        )
        for i in range(6):
            driver.add(f"long {i}", [i] * 1600, max_tokens=2)
        for _ in range(5):
            driver.step()
        driver.add("short", range(30), max_tokens=4)
        driver.run()
        assert steps_until_first_token(driver, "short") <= 3 + depth
        driver.check_answers()

    def test_with_a_share_of_one_the_order_of_service_alone_decides(self) -> None:
        driver = Driver(
            num_blocks=600, max_num_batched_tokens=64, max_model_len=2000, prefill_share=1.0
        )
        driver.add("long", range(640), max_tokens=2)
        driver.step()
        driver.add("short", range(1000, 1060), max_tokens=2)
        driver.run()
        assert tokens_of(driver, "long")[:9] == [64, *[63] * 8]
        driver.check_answers()


class TestLongPromptIsNotStarvedInTurn:
    @DEPTHS
    def test_a_stream_of_short_prompts_leaves_it_half_of_each_step(self, depth: int) -> None:
        driver = Driver(
            num_blocks=600, max_num_batched_tokens=64, max_model_len=2000, async_depth=depth
        )
        driver.add("long", range(1000), max_tokens=1)
        number = 0
        while "long" not in driver.records:
            for _ in range(3):  # more than a step can take
                if driver.scheduler.stats().num_waiting < 20:
                    driver.add(f"short {number}", [number % 900] * 30, max_tokens=1)
                    number += 1
            driver.step()
            assert driver.now < 100
        assert steps_until_first_token(driver, "long") <= 1000 / (64 / 2 - 8) + depth
        driver.run()
        driver.check_answers()

    @DEPTHS
    def test_one_that_waits_behind_another_becomes_the_oldest(self, depth: int) -> None:
        driver = Driver(
            num_blocks=900, max_num_batched_tokens=64, max_model_len=2000, async_depth=depth
        )
        driver.add("long", [1] * 1000, max_tokens=1)
        driver.add("second", [2] * 600, max_tokens=1)
        number = 0
        while "second" not in driver.records:
            for _ in range(3):
                if driver.scheduler.stats().num_waiting < 20:
                    driver.add(f"short {number}", [number % 900] * 30, max_tokens=1)
                    number += 1
            driver.step()
            assert driver.now < 150
        driver.run()
        assert driver.records["long"].finished_s < driver.records["second"].finished_s
        driver.check_answers()


class TestDecodesDuringPrefill:
    """L2: engines that prefill first stopped every stream for as long as a prompt took."""

    @DEPTHS
    def test_each_step_brings_each_stream_a_token(self, depth: int) -> None:
        driver = Driver(
            num_blocks=900,
            max_num_batched_tokens=16,
            max_model_len=2000,
            max_num_seqs=12,
            async_depth=depth,
        )
        for i in range(6):
            driver.add(f"stream {i}", [i], max_tokens=100)
        driver.step()
        for i in range(6):
            driver.add(f"long {i}", [i] * 200, max_tokens=2)
        driver.run()
        for i in range(6):
            assert tokens_of(driver, f"stream {i}") == [1] * 100
        assert all(step.total_tokens <= 16 for step in driver.runner.steps)
        driver.check_answers()


class TestHeadOfTheQueueLacksBlocks:
    """A request without room must neither stop those that have it nor wait for them for ever."""

    def make_driver(self, depth: int, max_overtakes: int) -> Driver:
        driver = Driver(
            num_blocks=33, async_depth=depth, max_overtakes=max_overtakes, prefix_caching=False
        )
        driver.add("running", range(40), max_tokens=12)
        driver.step()
        driver.add("head", range(100, 190), max_tokens=2)  # 23 of the 32 blocks, 21 are free
        return driver

    @DEPTHS
    def test_small_ones_that_fit_overtake_it(self, depth: int) -> None:
        driver = self.make_driver(depth, max_overtakes=16)
        for i in range(3):
            driver.add(f"small {i}", [i] * 4, max_tokens=2)
        driver.step()
        driver.run()
        for i in range(3):
            assert steps_until_begun(driver, f"small {i}") == 1
        assert steps_until_begun(driver, "head") > 1
        assert driver.scheduler.stats().num_preemptions == 0
        driver.check_answers()

    @DEPTHS
    def test_after_so_many_nobody_does_until_it_has_entered(self, depth: int) -> None:
        driver = self.make_driver(depth, max_overtakes=5)
        number = 0
        while not driver.records.keys() >= {"head"}:
            driver.add(f"small {number}", [number] * 4, max_tokens=30)
            number += 1
            driver.step()
            assert driver.now < 100
        driver.run()
        begun = driver.records["head"].first_scheduled_s
        assert begun is not None
        earlier = [
            name
            for name, record in driver.records.items()
            if name.startswith("small") and (record.first_scheduled_s or 0) < begun
        ]
        assert len(earlier) == 5
        driver.check_answers()

    def test_with_no_overtaking_the_order_of_service_is_kept(self) -> None:
        driver = self.make_driver(0, max_overtakes=0)
        driver.add("small", [1] * 4, max_tokens=2)
        driver.run()
        head, small = driver.records["head"], driver.records["small"]
        assert head.first_scheduled_s is not None
        assert small.first_scheduled_s is not None
        assert head.first_scheduled_s <= small.first_scheduled_s

    def test_lesser_priorities_do_not_overtake(self) -> None:
        driver = self.make_driver(0, max_overtakes=16)
        driver.add("batch", [1] * 4, max_tokens=2, priority=1)
        driver.add("small", [2] * 4, max_tokens=2)
        driver.run()
        assert steps_until_begun(driver, "small") == 1
        assert steps_until_begun(driver, "batch") >= steps_until_begun(driver, "head")

    @DEPTHS
    def test_one_that_was_preempted_is_not_overtaken(self, depth: int) -> None:
        driver = Driver(num_blocks=9, async_depth=depth, prefix_caching=False)
        driver.add("old", range(8), max_tokens=20)
        driver.step()
        driver.add("new", range(50, 62), max_tokens=8)
        driver.step_until_preempted()
        driver.add("small", [1], max_tokens=1)
        driver.run()
        resumed = [s.step for s in driver.runner.steps for n in s.new if n.request_id == "new"][1]
        began = next(s.step for s in driver.runner.steps for n in s.new if n.request_id == "small")
        assert began >= resumed
        driver.check_answers()

    def test_its_prefix_is_not_looked_up_in_every_step(self) -> None:
        driver = Driver(num_blocks=1600, max_model_len=8000, max_num_batched_tokens=4000)
        driver.add("running", [1] * 3996, max_tokens=300)
        for _ in range(20):
            driver.step()
        driver.add("head", [1] * 3996 + [2] * 2390, max_tokens=2)  # 999 of its blocks are cached
        found: list[int] = []
        pool = driver.scheduler._kv.pool
        find = pool.find
        pool.find = lambda key: found.append(1) or find(key)  # type: ignore[method-assign,func-returns-value]
        for _ in range(250):
            driver.scheduler.update(
                scheduled := driver.scheduler.schedule(0.0),
                driver.runner.dispatch(scheduled).result(),
                0.0,
            )
        assert driver.scheduler.stats().num_waiting == 1
        assert 999 < len(found) <= 16 * 250

    @DEPTHS
    def test_a_note_of_what_it_lacks_does_not_keep_it_out(self, depth: int) -> None:
        """It enters in the very step in which there are blocks, however long its prompt is."""
        driver = Driver(
            num_blocks=1001, max_model_len=8000, max_num_batched_tokens=4000, async_depth=depth
        )
        driver.add("running", [1] * 1000, max_tokens=50)
        driver.step()
        driver.add("head", [2] * 3000, max_tokens=2)
        driver.run()
        head, running = driver.records["head"], driver.records["running"]
        assert head.first_scheduled_s == running.finished_s + 1 - depth
        driver.check_answers()
