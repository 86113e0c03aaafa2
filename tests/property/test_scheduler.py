"""Any order of adding, ending and stepping, at any depth, in any pool: the answers do not change.

The oracle computes each request alone, without cache, batch or scheduler. Invariants are checked
after every call, and the fake runner checks every slot that a row reads.
"""

import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo_engine.core.request import FinishReason
from octavo_engine.errors import ContextTooLong, Overloaded
from support.scheduling import Driver

# Mostly starts of one text, so that prefixes, whole prompts included, are found again and again.
_TEXT = [7, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]
_PROMPTS = st.builds(
    lambda length, tail: _TEXT[:length] + tail,
    st.one_of(st.integers(1, 24), st.sampled_from([4, 8, 16])),
    st.one_of(st.just([]), st.lists(st.integers(0, 2), max_size=5)),
)
_OPTIONS = st.fixed_dictionaries(
    {
        "num_blocks": st.one_of(st.integers(6, 12), st.integers(4, 24)),
        "block_size": st.sampled_from([1, 2, 4, 4, 5]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(1, 24),
        "max_model_len": st.integers(16, 64),
        "prefix_caching": st.sampled_from([True, True, True, False]),
        "max_queued_requests": st.integers(0, 8),
        "max_queued_tokens": st.sampled_from([1, 40, 1000, 1000]),
        "max_overtakes": st.integers(0, 3),
        "priority_wait_s": st.sampled_from([0.0, 3.0, 10.0, 60.0]),
        "prefill_share": st.sampled_from([0.25, 0.5, 0.5, 1.0]),
        "async_depth": st.integers(0, 2),
    }
)
_LOGPROBS = st.sampled_from([None, None, 0, 3])
_STOP_TOKENS = st.sampled_from([frozenset[int](), frozenset(range(0, 1000, 11))])


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(options=_OPTIONS, failing=st.sampled_from([0, 0, 41]))
    def start(self, options: dict[str, Any], failing: int) -> None:
        def find_failure(request_id: str, history: Any) -> str | None:
            return "went wrong" if failing and sum(history) % failing == 5 else None

        self.driver = Driver(**options, find_failure=find_failure)
        self.num_requests = 0

    @rule(
        prompts=st.lists(_PROMPTS, min_size=1, max_size=4),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        salt=st.sampled_from([None, None, None, "s"]),
        max_tokens=st.integers(1, 40),
        min_tokens=st.sampled_from([0, 0, 5]),
        stop_token_ids=_STOP_TOKENS,
        are_stops_suppressed=st.booleans(),
        patience_s=st.one_of(st.none(), st.none(), st.integers(0, 30)),
        num_logprobs=_LOGPROBS,
        num_prompt_logprobs=_LOGPROBS,
    )
    def add(
        self,
        prompts: list[list[int]],
        priority: int,
        salt: str | None,
        max_tokens: int,
        min_tokens: int,
        stop_token_ids: frozenset[int],
        are_stops_suppressed: bool,
        patience_s: int | None,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None,
    ) -> None:
        for prompt in prompts:
            self.add_one(
                prompt,
                deadline_s=None if patience_s is None else self.driver.now + patience_s,
                num_logprobs=num_logprobs,
                num_prompt_logprobs=num_prompt_logprobs,
                priority=priority,
                cache_salt=salt,
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                stop_token_ids=stop_token_ids,
                suppress_until_min_tokens=stop_token_ids if are_stops_suppressed else frozenset(),
            )

    def add_one(self, prompt: list[int], **options: Any) -> None:
        config = self.driver.config
        capacity = (config.num_blocks - 1) * config.block_size
        can_fit = len(prompt) < config.max_model_len and len(prompt) <= capacity
        request_id = f"r{self.num_requests}"
        self.num_requests += 1
        try:
            self.driver.add(request_id, prompt, **options)
        except ContextTooLong:
            assert not can_fit
        except Overloaded:
            live = self.driver.scheduler.stats()
            num_queued = live.num_running + live.num_waiting - config.num_seats
            has_tokens = live.num_waiting_tokens > 0
            has_room = live.num_waiting_tokens + len(prompt) <= config.max_queued_tokens
            assert num_queued >= config.max_queued_requests or (has_tokens and not has_room)
        else:
            assert can_fit

    @precondition(lambda self: self.num_requests > 0)
    @rule(
        data=st.data(),
        count=st.integers(1, 4),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 2]),
    )
    def fork(
        self, data: st.DataObject, count: int, priority: int, num_prompt_logprobs: int | None
    ) -> None:
        """More choices for the prompt of any earlier request, a fork or one that has ended too."""
        specs = self.driver.specs
        source = specs.get(f"r{data.draw(st.integers(0, self.num_requests - 1))}")
        for _ in range(count if source else 0):
            self.add_one(
                source.prompt_token_ids,
                priority=priority,
                cache_salt=source.cache_salt,
                fork_of=source.request_id,
                seed=data.draw(st.sampled_from([None, 1, 2, 3])),
                max_tokens=data.draw(st.integers(1, 40)),
                num_prompt_logprobs=num_prompt_logprobs,
            )

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: len(self.driver.pending) > 0)
    @rule()
    def take_a_result_early(self) -> None:
        self.driver.take_result()

    @precondition(lambda self: self.num_requests > 0)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def finish(self, data: st.DataObject, reason: FinishReason) -> None:
        self.driver.finish(f"r{data.draw(st.integers(0, self.num_requests - 1))}", reason)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.run()
            self.driver.check_answers()


SchedulerMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestScheduler = SchedulerMachine.TestCase


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_under_pressure_everything_happens_and_no_answer_changes(depth: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(40):
        draw = random.Random(seed)
        driver = Driver(
            num_blocks=draw.randint(9, 14),
            max_num_seqs=draw.randint(2, 6),
            max_num_batched_tokens=draw.randint(4, 24),
            async_depth=depth,
            find_failure=lambda name, history: "wrong" if sum(history) % 97 == 5 else None,
        )
        for number in range(12):
            prompt = _TEXT[: draw.choice([3, 8, 12, 16])] + [number] * draw.choice([0, 0, 2])
            driver.add(
                f"r{number}",
                prompt,
                priority=draw.choice([0, 0, 1]),
                max_tokens=draw.randint(1, 40),
                stop_token_ids=frozenset(range(draw.choice([1000, 20]), 1000, 17)),
                deadline_s=driver.now + draw.randint(10, 40) if draw.random() < 0.1 else None,
                num_logprobs=draw.choice([None, 1]),
                num_prompt_logprobs=draw.choice([None, None, 1]),
            )
            for choice in range(draw.choice([0, 0, 1, 2])):
                driver.add(
                    f"r{number}/{choice}", prompt, fork_of=f"r{number}", max_tokens=12, seed=choice
                )
            for _ in range(draw.randint(0, 3)):
                driver.step()
            if draw.random() < 0.1:
                driver.finish(f"r{draw.randint(0, number)}")
        driver.run()
        driver.check_answers()
        stats = driver.scheduler.stats()
        happened["preemptions"] += stats.num_preemptions
        happened["deadlines"] += sum(r.is_deadline_exceeded for r in driver.records.values())
        happened["tokens of forks"] += sum(
            r.num_cached_tokens for name, r in driver.records.items() if "/" in name
        )
        happened["prompts resumed with log-probabilities"] += sum(
            r.num_preemptions > 0 and bool(driver.prompt_logprobs[name])
            for name, r in driver.records.items()
        )
        happened["prefix hits"] += stats.prefix_hit_tokens
        happened["full hits"] += sum(len(step.attend_only) for step in driver.runner.steps)
        happened.update(reason for reason, count in stats.finished.items() if count)
    assert happened["preemptions"] > 40
    assert happened["prefix hits"] > 400
    assert happened["full hits"] > 40
    assert happened["deadlines"] > 3
    assert happened["tokens of forks"] > 400
    assert happened["prompts resumed with log-probabilities"] > 10
    assert all(happened[reason] > 3 for reason in FinishReason), happened


@pytest.mark.parametrize("depth", [0, 1])
def test_nobody_starves_whatever_comes_meanwhile(depth: int) -> None:
    """A request's wait is bounded by what was before it, not by the stream that comes after it."""
    num_late = 0
    for seed in range(12):
        draw = random.Random(seed)
        driver = Driver(
            num_blocks=draw.randint(40, 60),
            max_num_seqs=draw.randint(3, 6),
            max_num_batched_tokens=draw.randint(8, 32),
            max_overtakes=draw.randint(0, 6),
            async_depth=depth,
        )
        for number in range(4):
            driver.add(f"early {number}", [number] * draw.randint(1, 20), max_tokens=20)
        driver.step()
        watched = {
            "long": draw.randint(90, 140),
            "middling": draw.randint(30, 80),
            "short": draw.randint(1, 9),
        }
        for name, length in watched.items():
            driver.add(name, [draw.randrange(900) for _ in range(length)], max_tokens=8)
        number = 0
        while not watched.keys() <= driver.records.keys():
            while driver.scheduler.stats().num_waiting < 12:
                prompt = [draw.randrange(900) for _ in range(draw.choice([2, 5, 30]))]
                driver.add(f"late {number}", prompt, max_tokens=draw.randint(1, 20))
                number += 1
            driver.step()
            assert driver.now < 400, sorted(watched.keys() - driver.records.keys())
        num_late += number
        driver.run()
        driver.check_answers()
    assert num_late > 150, "others came and were served meanwhile"
