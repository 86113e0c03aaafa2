"""Who computes what in the next step.

There are no phases. Every sequence has `num_computed_tokens` catching up with `num_tokens`, and a
step is {sequence: n tokens} under one budget: running sequences first, then waiting ones. Long
prompts in chunks, prefix hits, and preemption all fall out of that sentence.

    add ─► (held) ─► waiting ─► running ─► (draining) ─► finished
                        ▲          │  preempted: blocks given back, computed again later
                        └──────────┘

Four choices carry the rest:
- Running sequences stand in order of service, and the last one is the victim of a preemption. So a
  victim has never been scheduled in the step that takes its blocks, and nothing is ever undone.
- A sequence enters only when all of its known tokens fit, so no two can wait for each other.
- The length at which a sequence must end, the size of the KV cache included, is known when it is
  added. So one that is alone always has room, and its seat is free at the very next step.
- Who decodes gets a token first; prompts share what is left of the step (`prefill_share`).

Every output of `schedule` must be dispatched, in order, and its result brought to `update`, in
order. Blocks change hands without waiting for steps under way, because steps execute in order.
"""

from collections import deque
from dataclasses import dataclass

from octavo_engine.core.admission import Admission
from octavo_engine.core.ageing import Ageing
from octavo_engine.core.deadlines import Deadlines
from octavo_engine.core.entrance import Entrance
from octavo_engine.core.forks import Forks, has_prompt
from octavo_engine.core.invariants import check_places, check_sequence, check_sums
from octavo_engine.core.kv_cache_manager import Fit, KVCacheManager
from octavo_engine.core.messages import ModelOutput, SchedulerOutput, TokenLogprob
from octavo_engine.core.prefill_share import PrefillShare
from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.core.scheduler_config import SchedulerConfig
from octavo_engine.core.sequence import Sequence, SequenceState
from octavo_engine.core.step import Step
from octavo_engine.core.stopping import decide_finish, decide_max_total_tokens
from octavo_engine.core.waiting_queue import OrderedSequences

__all__ = ["Scheduler", "SchedulerConfig"]


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
        self._admission = Admission(config, self._kv.capacity_tokens)
        self._deadlines = Deadlines()
        self._forks = Forks()
        self._waiting = OrderedSequences()
        self._running = OrderedSequences()
        self._entrance = Entrance(config, self._kv, self._waiting, self._running)
        self._ageing = Ageing(config.priority_wait_s, self._waiting, self._running)
        self._sequences: dict[str, Sequence] = {}  # all that have not ended
        self._under_way: deque[Step] = deque()
        self._completing: list[Sequence] = []  # their last token is under way
        self._to_drop: list[str] = []  # ended since the runner last heard
        self._num_untold = 0  # ends by deadline that no update has told yet
        self._num_added = 0
        self._num_steps = 0
        self._counters = _Counters()
        self._finished = dict.fromkeys(FinishReason, 0)

    def check_admissible(self, num_prompt_tokens: int) -> None:
        """Raise ContextTooLong for a prompt that could never be answered, however long it waits."""
        self._admission.check_admissible(num_prompt_tokens)

    def add(self, spec: RequestSpec) -> None:
        """Queue a request. Raises ContextTooLong, or Overloaded when the queue is full."""
        assert spec.prompt_token_ids, "an empty prompt is refused before it gets here"
        assert spec.sampling.max_tokens >= 1, "max_tokens below 1 is refused before it gets here"
        assert spec.request_id not in self._sequences, f"{spec.request_id} is here already"
        num_prompt_tokens = len(spec.prompt_token_ids)
        self.check_admissible(num_prompt_tokens)
        source = self._find_source(spec)
        num_queued_tokens = 0 if source is not None else num_prompt_tokens
        self._admission.check_room(num_queued_tokens, len(self._sequences))
        sequence = Sequence(
            spec,
            number=self._num_added,
            max_total_tokens=decide_max_total_tokens(
                num_prompt_tokens,
                spec.sampling.max_tokens,
                self.config.max_model_len,
                self._kv.capacity_tokens,
            ),
            source=source,
        )
        self._num_added += 1
        self._sequences[spec.request_id] = sequence
        self._ageing.add(sequence)
        if spec.deadline_s is not None:
            self._deadlines.add(spec.deadline_s, sequence)
        self._count_queued(sequence, num_queued_tokens)
        if source is None or has_prompt(source):
            self._waiting.add(sequence)
        else:
            sequence.state = SequenceState.HELD
            self._forks.hold(sequence)

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
        self._admission.pace.pass_time(now, is_busy=bool(self._sequences))
        ended = self._end_overdue(now)
        self._ageing.pass_time(now, self._sequences)
        self._drain_completing()
        step = Step(self._num_steps, self._to_drop, ended)
        self._to_drop = []
        self._num_steps += 1
        num_running_before = len(self._running)
        prompts = PrefillShare(self.config.prefill_share)
        self._schedule_running(step, prompts)
        if len(self._running) == num_running_before:
            budget = self.config.max_num_batched_tokens - step.num_tokens
            for sequence, fit in self._entrance.let_in(prompts, budget, step.number):
                self._enter(step, sequence, fit, now)
        # else: a newcomer would take the blocks that a preempted sequence just gave up.
        for sequence, num_new in prompts.grant(
            self.config.max_num_batched_tokens - step.num_tokens
        ):
            self._add_row(step, sequence, num_new)
        for sequence in step.sequences:
            self._kv.commit(sequence)
        for fork in self._forks.release_computed(step.sequences):
            self._queue(fork)
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
        updates = step.ended
        self._num_untold -= len(updates)
        starts = step.starts() if output.prompt_logprobs else {}
        num_generated = 0
        for sequence, samples, new_tokens in zip(
            step.sequences, step.samples, output.token_ids, strict=True
        ):
            if samples:
                sequence.num_placeholders -= 1
            if sequence.state is SequenceState.FINISHED:
                continue
            request_id = sequence.request_id
            record: RequestRecord | None = None
            error = output.failed.get(request_id) if output.failed else None
            of_prompt: list[TokenLogprob] = []
            if error is not None:
                self._kv.forget(sequence)
                record = self._end(sequence, FinishReason.ERROR, now, error)
                new_tokens = ()
            else:
                if starts and request_id in output.prompt_logprobs:
                    start, found = starts[request_id], output.prompt_logprobs[request_id]
                    of_prompt = sequence.take_prompt_logprobs(start, found)
                if samples:
                    assert len(new_tokens) == 1, "a row that reaches its end brings one token"
                    num_generated += 1
                    record = self._append(sequence, new_tokens[0], now)
                else:
                    assert not new_tokens, "a row that does not reach its end brings no token"
                    if not of_prompt:
                        continue
            updates.append(
                SequenceUpdate(
                    request_id=request_id,
                    new_token_ids=list(new_tokens),
                    num_cached_tokens=sequence.num_cached_tokens,
                    record=record,
                    logprobs=output.logprobs.get(request_id, []) if new_tokens else [],
                    prompt_logprobs=of_prompt,
                )
            )
        self._counters.generated_tokens += num_generated
        return updates

    def has_work(self) -> bool:
        """Whether to schedule again. Steps under way are the caller's to finish, if it has any.

        A last, empty step lets the runner drop what has ended.
        """
        return bool(self._sequences or self._to_drop or self._num_untold)

    def stats(self) -> SchedulerStats:
        counters = self._counters
        num_waiting = len(self._waiting) + len(self._forks)
        return SchedulerStats(
            num_running=len(self._sequences) - num_waiting,
            num_waiting=num_waiting,
            num_waiting_tokens=self._admission.num_queued_tokens,
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
        check_places(
            self._sequences,
            waiting=self._waiting,
            running=self._running,
            forks=self._forks,
            num_seats=self.config.num_seats,
        )
        for sequence in self._sequences.values():
            check_sequence(sequence, self._kv)
        check_sums(self._sequences, self._kv, self._admission)

    def _find_source(self, spec: RequestSpec) -> Sequence | None:
        """The sequence that a new one is to share its prompt with, if it is still here."""
        source = self._sequences.get(spec.fork_of) if spec.fork_of is not None else None
        if source is None or spec.sampling.num_prompt_logprobs is not None:
            return None  # prompt log-probabilities need every position computed
        same = source.spec.prompt_token_ids == spec.prompt_token_ids
        assert same, f"{spec.request_id} is a fork with another prompt"
        assert source.spec.cache_salt == spec.cache_salt, f"{spec.request_id} has another salt"
        assert source.spec.adapter == spec.adapter, f"{spec.request_id} has another adapter"
        return source

    def _queue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._waiting.add(sequence)

    def _count_queued(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_queued_tokens = num_tokens
        self._admission.enqueue(num_tokens)

    def _schedule_running(self, step: Step, prompts: PrefillShare) -> None:
        """Give every decoding sequence its token, and count those in that have more to compute."""
        block_size = self.config.block_size
        running = self._running
        index = 0
        while index < len(running):
            sequence = running[index]
            index += 1
            num_new = sequence.num_tokens - sequence.num_computed_tokens
            if num_new > 1:
                prompts.add(sequence, num_new)  # it got blocks for all of that when it entered
                continue
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
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._queue(victim)
        self._counters.num_preemptions += 1
        step.dropped.append(victim.request_id)

    def _enter(self, step: Step, sequence: Sequence, fit: Fit, now: float) -> None:
        self._kv.enter(sequence, fit)
        self._running.add(sequence)
        sequence.state = SequenceState.RUNNING
        all_cached = fit.num_cached_tokens == sequence.num_tokens
        sequence.num_computed_tokens = fit.num_cached_tokens - all_cached
        if sequence.first_scheduled_s is None:
            self._note_first_schedule(sequence, now)
        step.introduce(sequence, attend_only=all_cached)

    def _note_first_schedule(self, sequence: Sequence, now: float) -> None:
        sequence.first_scheduled_s = now
        sequence.num_cached_tokens = sequence.num_computed_tokens
        self._counters.prompt_tokens += sequence.num_prompt_tokens
        self._admission.begin(sequence.num_queued_tokens)
        # A fork's tokens are no hit, since it asked for none; neither did who reuses nothing.
        wants_all = sequence.sampling.num_prompt_logprobs is not None
        if self.config.prefix_caching and sequence.spec.fork_of is None and not wants_all:
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

    def _end_overdue(self, now: float) -> list[SequenceUpdate]:
        """End those whose deadline has passed; the updates are told with this step's."""
        ended = []
        for sequence in self._deadlines.pop_due(now, self._sequences):
            waited_s = now - sequence.spec.arrival_s
            error = f"deadline exceeded: not done {waited_s:.1f} s after its arrival"
            record = self._end(sequence, FinishReason.ABORT, now, error, is_deadline_exceeded=True)
            ended.append(
                SequenceUpdate(
                    request_id=sequence.request_id,
                    new_token_ids=[],
                    num_cached_tokens=sequence.num_cached_tokens,
                    record=record,
                )
            )
        self._num_untold += len(ended)
        return ended

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: str | None = None,
        *,
        is_deadline_exceeded: bool = False,
    ) -> RequestRecord:
        """The one way out, for every reason."""
        if sequence.state is SequenceState.HELD:
            self._forks.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._leave(sequence)
        sequence.state = SequenceState.FINISHED
        del self._sequences[sequence.request_id]
        self._finished[reason] += 1
        self._admission.pace.count_end()
        if sequence.first_scheduled_s is None:  # so that the totals are the sums over requests
            self._counters.prompt_tokens += sequence.num_prompt_tokens
            self._admission.leave_unbegun(sequence.num_queued_tokens)
        successor = self._forks.succeed(sequence)
        if successor is not None:
            self._count_queued(successor, successor.num_prompt_tokens)
            self._queue(successor)
        return sequence.make_record(reason, now, error, is_deadline_exceeded=is_deadline_exceeded)

    def _leave(self, sequence: Sequence) -> None:
        self._kv.leave(sequence)
        self._to_drop.append(sequence.request_id)
