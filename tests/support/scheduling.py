"""Drives a scheduler with a fake runner, as serving's loop does, and an oracle to compare with."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from octavo_engine.core.kv_cache_manager import KVCacheManager
from octavo_engine.core.messages import (
    PendingStep,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
)
from octavo_engine.core.request import FinishReason, RequestRecord, RequestSpec, SequenceUpdate
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig
from octavo_engine.core.stopping import decide_finish
from octavo_engine.testing import (
    EMPTY_HISTORY,
    FakeRunner,
    choose_by_hash,
    extend_history,
    make_logprob,
    suppress,
    vary,
)

VOCAB_SIZE = 1000


def expected_answer(
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_total_tokens: int,
    vocab_size: int = VOCAB_SIZE,
) -> tuple[list[int], FinishReason]:
    """What a request must get, computed alone, token by token, without a cache or a scheduler."""
    choose = choose_by_hash(vocab_size)
    tokens = list(prompt)
    while True:
        num_generated = len(tokens) - len(prompt)
        token_id = vary(choose(tokens), sampling, vocab_size)
        token_id = suppress(token_id, num_generated, sampling, vocab_size)
        tokens.append(token_id)
        reason = decide_finish(token_id, num_generated + 1, len(tokens), max_total_tokens, sampling)
        if reason is not None:
            return tokens[len(prompt) :], reason


def expected_logprobs(
    tokens: Sequence[int], start: int, num_top: int, vocab_size: int = VOCAB_SIZE
) -> list[TokenLogprob]:
    """Log-probabilities of the tokens from position `start`, 1 or more, to the end."""
    found = []
    history = EMPTY_HISTORY
    for position, token_id in enumerate(tokens):
        if position >= start:
            found.append(make_logprob(history, token_id, num_top, vocab_size))
        history = extend_history(history, token_id)
    return found


class Driver:
    """One scheduler and one fake runner; every step is checked from inside and from outside.

    At asynchronous depth d, a step's result is taken when d further steps have been dispatched.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 65,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 512,
        prefix_caching: bool = True,
        max_queued_requests: int = 100,
        max_queued_tokens: int = 1 << 20,
        max_overtakes: int = 16,
        priority_wait_s: float = 60.0,
        prefill_share: float = 0.5,
        async_depth: int = 0,
        kv: KVCacheManager | None = None,
        **runner_options: Any,
    ) -> None:
        self.config = SchedulerConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
            max_queued_requests=max_queued_requests,
            max_queued_tokens=max_queued_tokens,
            max_overtakes=max_overtakes,
            priority_wait_s=priority_wait_s,
            prefill_share=prefill_share,
            async_depth=async_depth,
        )
        self.scheduler = Scheduler(self.config, kv)
        self.runner = FakeRunner(num_blocks, block_size, vocab_size=VOCAB_SIZE, **runner_options)
        self.pending: deque[tuple[SchedulerOutput, PendingStep]] = deque()
        self.now = 0.0
        self.specs: dict[str, RequestSpec] = {}
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.records: dict[str, RequestRecord] = {}
        self.ended_from_outside: set[str] = set()

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        fork_of: str | None = None,
        deadline_s: float | None = None,
        **sampling: Any,
    ) -> None:
        sampling.setdefault("max_tokens", 8)
        spec = RequestSpec(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling=SamplingParams(**sampling),
            arrival_s=self.now,
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
            fork_of=fork_of,
            deadline_s=deadline_s,
        )
        self.scheduler.add(spec)
        self.specs[request_id] = spec
        self.tokens[request_id] = []
        self.logprobs[request_id] = []
        self.prompt_logprobs[request_id] = []

    def finish(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        record = self.scheduler.finish(request_id, reason, self.now)
        if record is not None:
            self.ended_from_outside.add(request_id)
            self._note_record(record)
        self.scheduler.check_invariants()

    def step(self) -> SchedulerOutput:
        """Schedule and dispatch one step, then take the result that is due."""
        self.now += 1.0
        scheduled = self.scheduler.schedule(self.now)
        self.scheduler.check_invariants()
        assert scheduled.total_tokens <= self.config.max_num_batched_tokens
        assert len(scheduled.request_ids) <= self.config.max_num_seqs
        self.pending.append((scheduled, self.runner.dispatch(scheduled)))
        if len(self.pending) > self.config.async_depth:
            self.take_result()
        return scheduled

    def step_until_preempted(self, max_steps: int = 200) -> SchedulerOutput:
        """Step until a preemption happens; returns the step in which it did."""
        for _ in range(max_steps):
            scheduled = self.step()
            if self.scheduler.stats().num_preemptions:
                return scheduled
        raise AssertionError(f"no preemption in {max_steps} steps")

    def take_result(self) -> list[SequenceUpdate]:
        scheduled, step = self.pending.popleft()
        updates = self.scheduler.update(scheduled, step.result(), self.now)
        self.scheduler.check_invariants()
        for update in updates:
            assert update.request_id not in self.records, "a request is heard of after its end"
            says_something = update.new_token_ids or update.prompt_logprobs or update.record
            assert says_something, "an update that says nothing"
            self.tokens[update.request_id] += update.new_token_ids
            self.logprobs[update.request_id] += update.logprobs
            self.prompt_logprobs[update.request_id] += update.prompt_logprobs
            if update.record is not None:
                self._note_record(update.record)
        return updates

    def run(self, max_steps: int = 5000) -> None:
        """Step until nothing is left, then check that nothing leaked."""
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                break
            self.step()
        else:
            raise AssertionError(f"still at work after {max_steps} steps")
        while self.pending:
            self.take_result()
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert not self.runner.held_request_ids, "the runner still holds what has ended"
        assert set(self.records) == set(self.specs), "a request never ended"
        assert sum(stats.finished.values()) == len(self.records)
        assert stats.prompt_tokens == sum(r.num_prompt_tokens for r in self.records.values())
        assert stats.generated_tokens == sum(r.num_generated_tokens for r in self.records.values())

    def expected(self, request_id: str) -> tuple[list[int], FinishReason]:
        spec = self.specs[request_id]
        capacity = (self.config.num_blocks - 1) * self.config.block_size
        limit = min(
            len(spec.prompt_token_ids) + spec.sampling.max_tokens,
            self.config.max_model_len,
            capacity + 1,
        )
        return expected_answer(spec.prompt_token_ids, spec.sampling, limit)

    def check_answers(self) -> None:
        """Requests that ended by themselves have the oracle's tokens and reason; others a start."""
        for request_id, record in self.records.items():
            tokens, reason = self.expected(request_id)
            got = self.tokens[request_id]
            is_cut = request_id in self.ended_from_outside or record.error is not None
            if is_cut:
                assert got == tokens[: len(got)], request_id
            else:
                assert (got, record.finish_reason) == (tokens, reason), request_id
            self._check_logprobs(request_id, is_cut)

    def _check_logprobs(self, request_id: str, is_cut: bool) -> None:
        """Each generated token has its own, once; each prompt token, too, or a start of them."""
        spec, got = self.specs[request_id], self.tokens[request_id]
        prompt, sampling = spec.prompt_token_ids, spec.sampling
        expected = []
        if sampling.num_logprobs is not None:
            expected = expected_logprobs([*prompt, *got], len(prompt), sampling.num_logprobs)
        assert self.logprobs[request_id] == expected, request_id
        expected = []
        if sampling.num_prompt_logprobs is not None:
            expected = expected_logprobs(prompt, 1, sampling.num_prompt_logprobs)
        found = self.prompt_logprobs[request_id]
        assert found == (expected[: len(found)] if is_cut else expected), request_id

    def _note_record(self, record: RequestRecord) -> None:
        assert record.request_id not in self.records, "a request ends twice"
        self.records[record.request_id] = record
        assert record.num_generated_tokens == len(self.tokens[record.request_id])
