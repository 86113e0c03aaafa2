"""Who computes what in the next step.

There are no phases. Every sequence has `num_computed_tokens` catching up with `num_tokens`, and a
step is {sequence: n tokens} under one budget: running sequences first, then waiting ones. Long
prompts in chunks, prefix hits, and preemption all fall out of that sentence.

    add ─► waiting ─► running ─► (draining) ─► finished
              ▲          │  preempted: blocks given back, computed again later
              └──────────┘

Three choices carry the rest:
- Running sequences stand in order of service, and the last one is the victim of a preemption. So a
  victim has never been scheduled in the step that takes its blocks, and nothing is ever undone.
- A sequence enters only when all of its known tokens fit, so no two can wait for each other.
- The length at which a sequence must end, the size of the KV cache included, is known when it is
  added. So one that is alone always has room, and its seat is free at the very next step.

Every output of `schedule` must be dispatched, in order, and its result brought to `update`, in
order. Blocks change hands without waiting for steps under way, because steps execute in order.
"""

from collections import deque
from dataclasses import dataclass

from octavo_engine.core.kv_cache_manager import KVCacheManager
from octavo_engine.core.messages import ModelOutput, SchedulerOutput
from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.core.sequence import Sequence, SequenceState
from octavo_engine.core.step import Step
from octavo_engine.core.stopping import decide_finish, decide_max_total_tokens
from octavo_engine.core.waiting_queue import OrderedSequences
from octavo_engine.errors import ContextTooLong, Overloaded

_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The numbers that scheduling depends on. `num_blocks` includes the null block.

    async_depth: steps that may be under way when the next one is scheduled.
    max_queued_requests: requests that may wait beyond those for which a seat is free.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool = True
    max_queued_requests: int = 1024
    async_depth: int = 0

    def __post_init__(self) -> None:
        assert self.num_blocks >= 2, "the pool needs the null block and one more"
        assert self.max_model_len >= 2, "a sequence is a prompt and an answer"
        assert min(self.block_size, self.max_num_seqs, self.max_num_batched_tokens) >= 1
        assert min(self.max_queued_requests, self.async_depth) >= 0

    @property
    def num_seats(self) -> int:
        """Sequences that can run at once: each takes at least one token of every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(slots=True, kw_only=True)
class _Counters:
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


class Scheduler:
    """Owns the truth about every request. Not thread-safe: one thread owns it."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager | None = None) -> None:
        self.config = config
        self._kv = kv or KVCacheManager(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            prefix_caching=config.prefix_caching,
        )
        self._waiting = OrderedSequences()
        self._running = OrderedSequences()
        self._sequences: dict[str, Sequence] = {}  # all that have not ended
        self._under_way: deque[Step] = deque()
        self._completing: list[Sequence] = []  # their last token is under way
        self._to_drop: list[str] = []  # ended since the runner last heard
        self._num_added = 0
        self._num_steps = 0
        self._counters = _Counters()
        self._finished = dict.fromkeys(FinishReason, 0)

    def check_admissible(self, num_prompt_tokens: int) -> None:
        """Raise ContextTooLong for a prompt that could never be answered, however long it waits."""
        limit, capacity = self.config.max_model_len, self._kv.capacity_tokens
        if num_prompt_tokens >= limit:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{num_prompt_tokens} tokens in the prompt, which leaves no room for an answer. "
                f"Shorten the prompt to at most {limit - 1} tokens."
            )
        if num_prompt_tokens > capacity:
            raise ContextTooLong(
                f"The KV cache of this engine holds {capacity} tokens. However, you requested "
                f"{num_prompt_tokens} tokens in the prompt. Shorten the prompt to at most "
                f"{capacity} tokens, or give the engine more memory."
            )

    def add(self, spec: RequestSpec) -> None:
        """Queue a request. Raises ContextTooLong, or Overloaded when the queue is full."""
        assert spec.prompt_token_ids, "an empty prompt is refused before it gets here"
        assert spec.sampling.max_tokens >= 1, "max_tokens below 1 is refused before it gets here"
        assert spec.request_id not in self._sequences, f"{spec.request_id} is here already"
        num_prompt_tokens = len(spec.prompt_token_ids)
        self.check_admissible(num_prompt_tokens)
        num_queued = len(self._sequences) - self.config.num_seats
        if num_queued >= self.config.max_queued_requests:
            raise Overloaded(
                f"The engine serves {self.config.num_seats} requests at once and its queue of "
                f"{self.config.max_queued_requests} is full. Try again in {_RETRY_AFTER_S} s.",
                retry_after_s=_RETRY_AFTER_S,
            )
        sequence = Sequence(
            spec,
            number=self._num_added,
            max_total_tokens=decide_max_total_tokens(
                num_prompt_tokens,
                spec.sampling.max_tokens,
                self.config.max_model_len,
                self._kv.capacity_tokens,
            ),
        )
        self._num_added += 1
        self._sequences[spec.request_id] = sequence
        self._waiting.add(sequence)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> RequestRecord | None:
        """End a request from outside: the client left, or serving found a stop string.

        Its blocks are free at once. None when it has ended already or was never here. A step under
        way may still bring tokens for it; they are not reported.
        """
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._end(sequence, reason, now)

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step. It may be empty; then it only tells the runner what to drop."""
        assert len(self._under_way) <= self.config.async_depth, "a result was not brought to update"
        self._drain_completing()
        step = Step(self._num_steps, self._to_drop)
        self._to_drop = []
        self._num_steps += 1
        num_running_before = len(self._running)
        self._schedule_running(step)
        if len(self._running) == num_running_before:
            self._schedule_waiting(step, now)
        # else: a newcomer would take the blocks that a preempted sequence just gave up.
        for sequence in step.sequences:
            self._kv.commit(sequence)
        self._under_way.append(step)
        return step.make_output()

    def update(
        self, scheduled: SchedulerOutput, output: ModelOutput, now: float
    ) -> list[SequenceUpdate]:
        """Take a step's tokens: append, stop, free. Steps come in the order of their scheduling.

        The token that ends a request is among its new tokens and is counted as generated, a stop
        token too; whoever makes text of it leaves a stop token out.
        """
        step = self._under_way.popleft()
        assert step.number == scheduled.step, f"step {scheduled.step} came, not {step.number}"
        assert len(output.token_ids) == len(step.sequences), "one list of tokens for each row"
        updates: list[SequenceUpdate] = []
        num_generated = 0
        for sequence, samples, new_tokens in zip(
            step.sequences, step.samples, output.token_ids, strict=True
        ):
            if samples:
                sequence.num_placeholders -= 1
            if sequence.state is SequenceState.FINISHED:
                continue
            record: RequestRecord | None = None
            error = output.failed.get(sequence.request_id) if output.failed else None
            if error is not None:
                self._kv.forget(sequence)
                record = self._end(sequence, FinishReason.ERROR, now, error)
                new_tokens = ()
            elif samples:
                assert len(new_tokens) == 1, "a row that reaches its end brings one token"
                num_generated += 1
                record = self._append(sequence, new_tokens[0], now)
            else:
                assert not new_tokens, "a row that does not reach its end brings no token"
                continue
            updates.append(
                SequenceUpdate(
                    request_id=sequence.request_id,
                    new_token_ids=list(new_tokens),
                    num_cached_tokens=sequence.num_cached_tokens,
                    record=record,
                )
            )
        self._counters.generated_tokens += num_generated
        return updates

    def has_work(self) -> bool:
        """Whether to schedule again. Steps under way are the caller's to finish, if it has any.

        A last, empty step lets the runner drop what has ended.
        """
        return bool(self._sequences or self._to_drop)

    def stats(self) -> SchedulerStats:
        counters = self._counters
        return SchedulerStats(
            num_running=len(self._sequences) - len(self._waiting),
            num_waiting=len(self._waiting),
            num_usable_blocks=self._kv.pool.num_usable,
            num_used_blocks=self._kv.pool.num_used,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            num_preemptions=counters.num_preemptions,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            finished=dict(self._finished),
        )

    def check_invariants(self) -> None:
        """Assert everything that must hold between calls. For tests: it looks at every block."""
        self._waiting.check_invariants()
        self._running.check_invariants()
        assert len(self._running) <= self.config.num_seats, "more run than there are seats"
        counted = len(self._waiting) + len(self._running)
        for sequence in self._sequences.values():
            state, name = sequence.state, sequence.request_id
            assert state is not SequenceState.FINISHED, f"{name} has ended but is still listed"
            assert sequence.num_tokens == len(sequence.token_ids) + sequence.num_placeholders, name
            assert 0 <= sequence.num_computed_tokens <= sequence.num_tokens, name
            assert sequence.num_tokens <= sequence.max_total_tokens, name
            if state is SequenceState.RUNNING:
                assert self._kv.missing_blocks(sequence, sequence.num_computed_tokens) <= 0, name
                surplus = -self._kv.missing_blocks(sequence, sequence.num_tokens)
                assert surplus <= 0, f"{name} holds {surplus} blocks that it cannot use yet"
            else:
                assert not sequence.block_ids, f"{name} holds blocks but has no seat"
                counted += state is SequenceState.DRAINING
            if state is SequenceState.WAITING:
                assert sequence.num_computed_tokens == 0, f"{name} has no blocks to be computed in"
        assert all(s.state is SequenceState.WAITING for s in self._waiting)
        assert all(s.state is SequenceState.RUNNING for s in self._running)
        assert counted == len(self._sequences), "a sequence is in no place, or in two"
        self._kv.check_invariants(list(self._sequences.values()))

    def _schedule_running(self, step: Step) -> None:
        """Give every running sequence its tokens, one at least."""
        budget, block_size = self.config.max_num_batched_tokens, self.config.block_size
        running = self._running
        index = 0
        while index < len(running):
            sequence = running[index]
            index += 1
            num_new = sequence.num_tokens - sequence.num_computed_tokens
            if num_new > 1:
                # One token stays reserved for each sequence behind, so that a long prompt cannot
                # stop the others' answers.
                num_new = min(num_new, budget - step.num_tokens - (len(running) - index))
            end = sequence.num_computed_tokens + num_new
            if end > len(sequence.block_ids) * block_size:
                num_missing = self._kv.missing_blocks(sequence, end)
                if not self._make_room(num_missing, sequence, step):
                    break  # it was the last in order and gave way itself
                step.append_blocks(sequence, self._kv.extend(sequence, num_missing))
            self._add_row(step, sequence, num_new)

    def _make_room(self, num_blocks: int, sequence: Sequence, step: Step) -> bool:
        """Preempt from the end of the order until blocks are free; False if that hit `sequence`."""
        while self._kv.pool.num_free < num_blocks:
            victim = self._running.pop_last()
            assert self._running or victim is not sequence, "a lone sequence always has room"
            self._preempt(victim, step)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, step: Step) -> None:
        self._kv.leave(victim)
        victim.state = SequenceState.WAITING
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._waiting.add(victim)
        self._counters.num_preemptions += 1
        step.dropped.append(victim.request_id)

    def _schedule_waiting(self, step: Step, now: float) -> None:
        budget = self.config.max_num_batched_tokens
        while (
            self._waiting
            and len(self._running) < self.config.num_seats
            and step.num_tokens < budget
        ):
            sequence = self._waiting[0]
            if sequence.num_placeholders:
                break  # preempted while a step was under way: its newest token is still to come
            fit = self._kv.find_fit(sequence)
            # One block is left for each that runs, lest the newcomer be preempted at once.
            if fit.num_consumed_blocks + len(self._running) > self._kv.pool.num_free:
                break
            self._waiting.pop_first()
            self._kv.enter(sequence, fit)
            self._running.add(sequence)
            sequence.state = SequenceState.RUNNING
            # If all is cached, the last token is still run for its logits, which are not.
            all_cached = fit.num_cached_tokens == sequence.num_tokens
            sequence.num_computed_tokens = fit.num_cached_tokens - all_cached
            if sequence.first_scheduled_s is None:
                self._note_first_schedule(sequence, now)
            step.introduce(sequence, attend_only=all_cached)
            num_new = sequence.num_tokens - sequence.num_computed_tokens
            self._add_row(step, sequence, min(num_new, budget - step.num_tokens))

    def _note_first_schedule(self, sequence: Sequence, now: float) -> None:
        sequence.first_scheduled_s = now
        sequence.num_cached_tokens = sequence.num_computed_tokens
        self._counters.prompt_tokens += sequence.num_prompt_tokens
        if self.config.prefix_caching:
            self._counters.prefix_query_tokens += sequence.num_prompt_tokens
            self._counters.prefix_hit_tokens += sequence.num_cached_tokens

    def _add_row(self, step: Step, sequence: Sequence, num_new: int) -> None:
        samples = step.add_row(sequence, num_new)
        if samples and sequence.num_tokens == sequence.max_total_tokens:
            self._completing.append(sequence)

    def _drain_completing(self) -> None:
        """Free the seats and blocks of sequences whose last token is already under way."""
        for sequence in self._completing:
            if sequence.state is SequenceState.RUNNING:
                self._running.remove(sequence)
                self._leave(sequence)
                sequence.state = SequenceState.DRAINING
        self._completing.clear()

    def _append(self, sequence: Sequence, token_id: int, now: float) -> RequestRecord | None:
        sequence.token_ids.append(token_id)
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        sequence.last_token_s = now
        num_total = len(sequence.token_ids)
        reason = decide_finish(
            token_id,
            num_total - sequence.num_prompt_tokens,
            num_total,
            sequence.max_total_tokens,
            sequence.sampling,
        )
        return None if reason is None else self._end(sequence, reason, now)

    def _end(
        self, sequence: Sequence, reason: FinishReason, now: float, error: str | None = None
    ) -> RequestRecord:
        """The one way out, for every reason."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._leave(sequence)
        sequence.state = SequenceState.FINISHED
        del self._sequences[sequence.request_id]
        self._finished[reason] += 1
        if sequence.first_scheduled_s is None:  # so that the totals are the sums over requests
            self._counters.prompt_tokens += sequence.num_prompt_tokens
        return sequence.make_record(reason, now, error)

    def _leave(self, sequence: Sequence) -> None:
        self._kv.leave(sequence)
        self._to_drop.append(sequence.request_id)
