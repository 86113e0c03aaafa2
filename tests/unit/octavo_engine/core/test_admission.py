import pytest

from octavo_engine.core.admission import Pace
from octavo_engine.errors import Overloaded
from support.scheduling import Driver


class TestQueuedTokens:
    """D9: a queue bounded by requests alone takes any number of tokens."""

    def test_prompts_that_have_not_begun_are_bounded_together(self) -> None:
        driver = Driver(max_queued_tokens=100)
        driver.add("a", range(60))
        driver.add("b", range(40))
        assert driver.scheduler.stats().num_waiting_tokens == 100
        with pytest.raises(Overloaded, match=r"100 tokens wait to begin, and 1 more .* 100 tokens"):
            driver.add("c", [1])
        driver.step()
        driver.step()
        assert driver.scheduler.stats().num_waiting_tokens == 0
        driver.add("c", range(100))
        driver.run()
        driver.check_answers()

    def test_a_lone_prompt_may_be_longer(self) -> None:
        driver = Driver(max_queued_tokens=10)
        driver.add("a", range(60))
        driver.run()
        driver.check_answers()

    def test_what_leaves_the_queue_unbegun_makes_room(self) -> None:
        driver = Driver(max_queued_tokens=100)
        driver.add("a", range(60))
        driver.add("b", range(40))
        driver.finish("a")
        driver.add("c", range(60))
        driver.run()
        driver.check_answers()

    def test_a_preempted_request_does_not_count_again(self) -> None:
        driver = Driver(num_blocks=9)
        driver.add("old", range(8), max_tokens=20)
        driver.step()
        driver.add("new", range(50, 62), max_tokens=8)
        driver.step_until_preempted()
        stats = driver.scheduler.stats()
        assert (stats.num_waiting, stats.num_waiting_tokens) == (1, 0)

    def test_what_is_refused_leaves_no_trace(self) -> None:
        driver = Driver(max_num_seqs=1, max_queued_requests=0)
        driver.add("a", range(60))
        before = driver.scheduler.stats()
        for _ in range(3):
            with pytest.raises(Overloaded):
                driver.add("b", range(60))
        assert driver.scheduler.stats() == before
        driver.run()
        driver.check_answers()


class TestRetryAfter:
    def test_it_follows_the_pace_at_which_requests_end(self) -> None:
        driver = Driver(max_num_seqs=1, max_queued_requests=8)
        for i in range(9):
            driver.add(f"first {i}", [i], max_tokens=2)
        for i in range(8):
            for _ in range(2):  # a step takes a second and a request two steps
                driver.step()
            driver.add(f"next {i}", [i], max_tokens=2)
        with pytest.raises(Overloaded, match=r"Try again in 1\d s") as error:
            driver.add("one too many", [1])
        assert 16 <= error.value.retry_after_s <= 19, "nine requests of two seconds"
        driver.run()

    def test_it_follows_the_pace_at_which_prompts_begin(self) -> None:
        driver = Driver(max_num_seqs=1, max_queued_tokens=100)
        driver.add("0", range(50), max_tokens=5)
        for i in range(1, 6):
            driver.add(str(i), range(50), max_tokens=5)
            for _ in range(5):
                driver.step()
        driver.add("6", range(50))
        with pytest.raises(Overloaded) as error:
            driver.add("7", range(60))
        assert 8 <= error.value.retry_after_s <= 12, "one prompt waits; one begins every 5 s"
        driver.run()

    @pytest.mark.parametrize(
        ("step_s", "num_ended", "num_waiting", "expected_s"),
        [
            pytest.param(1.0, 0, 5, 20, id="nothing ended in 20 s: as long again"),
            pytest.param(0.01, 0, 5, 5, id="at the very start: a guess"),
            pytest.param(1.0, 20, 5, 5, id="one a second"),
            pytest.param(0.01, 20, 5, 1, id="never below a second"),
            pytest.param(30.0, 3, 500, 60, id="never above a minute"),
        ],
    )
    def test_the_estimate(
        self, step_s: float, num_ended: int, num_waiting: int, expected_s: int
    ) -> None:
        pace = Pace()
        pace.pass_time(0.0, is_busy=True)
        for i in range(20):
            pace.pass_time((i + 1) * step_s, is_busy=True)
            if i >= 20 - num_ended:
                pace.count_end()
        found = pace.decide_retry_after_s(num_waiting, 0)
        assert found == pytest.approx(expected_s, abs=6 if step_s == 1.0 else 0)

    def test_an_idle_night_does_not_slow_the_pace(self) -> None:
        def measure(night_s: float) -> int:
            pace, now = Pace(), 0.0
            for part_s in (night_s, 0.0):
                pace.pass_time(now, is_busy=True)
                for _ in range(20):
                    now += 1.0
                    pace.pass_time(now, is_busy=True)
                    pace.count_end()
                pace.pass_time(now, is_busy=False)
                now += part_s
            return pace.decide_retry_after_s(10, 0)

        assert measure(100_000.0) == pytest.approx(measure(0.0), abs=1)

    def test_a_clock_that_stands_still_is_no_fault(self) -> None:
        pace = Pace()
        for _ in range(3):
            pace.pass_time(7.0, is_busy=True)
            pace.count_end()
        assert pace.decide_retry_after_s(10, 10) >= 1
