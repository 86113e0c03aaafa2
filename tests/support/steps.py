"""Drives a scheduler and a runner by hand, with a clock that counts steps."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo_engine.core.messages import (
    PendingStep,
    Runner,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
)
from octavo_engine.core.request import RequestRecord, RequestSpec
from octavo_engine.core.scheduler import Scheduler


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


@dataclass(kw_only=True)
class Outcome:
    """What a drive gave: tokens and records by request, and every step as it was scheduled."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    records: dict[str, RequestRecord] = field(default_factory=dict)
    steps: list[SchedulerOutput] = field(default_factory=list)


def drive(
    scheduler: Scheduler,
    runner: Runner,
    prompts: Mapping[str, Sequence[int]],
    sampling: SamplingParams | Mapping[str, SamplingParams],
    *,
    arrive_every: int = 0,
    ahead: int = 0,
    max_steps: int = 20_000,
) -> Outcome:
    """Run `prompts` to their ends; the i-th arrives at step i · arrive_every.

    `ahead` further steps are dispatched before the result of the first is taken.
    """
    outcome = Outcome()
    under_way: deque[tuple[SchedulerOutput, PendingStep]] = deque()

    def take_result(now: float) -> None:
        scheduled, pending = under_way.popleft()
        for update in scheduler.update(scheduled, pending.result(), now):
            outcome.tokens.setdefault(update.request_id, []).extend(update.new_token_ids)
            outcome.logprobs.setdefault(update.request_id, []).extend(update.logprobs)
            outcome.prompt_logprobs.setdefault(update.request_id, []).extend(update.prompt_logprobs)
            if update.record is not None:
                outcome.records[update.request_id] = update.record

    waiting = list(prompts.items())
    for step in range(max_steps):
        while waiting and step >= (len(prompts) - len(waiting)) * arrive_every:
            name, token_ids = waiting.pop(0)
            scheduler.add(
                RequestSpec(
                    request_id=name,
                    prompt_token_ids=list(token_ids),
                    sampling=sampling if isinstance(sampling, SamplingParams) else sampling[name],
                    arrival_s=float(step),
                )
            )
        if not waiting and not scheduler.has_work() and not under_way:
            scheduler.check_invariants()
            return outcome
        if waiting or scheduler.has_work():
            scheduled = scheduler.schedule(float(step))
            outcome.steps.append(scheduled)
            under_way.append((scheduled, runner.dispatch(scheduled)))
            if len(under_way) <= ahead:
                continue
        take_result(float(step))
    raise AssertionError(f"not finished after {max_steps} steps")
