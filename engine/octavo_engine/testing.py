"""Runners without a model, for tests of the scheduler and of serving.

FakeRunner keeps a simulated KV memory: each slot remembers a hash of the token history up to the
position written there. Every step checks, through the block table, that what a row attends to is
exactly its own history. So a block reused too early, hit before it was computed, shared while it
still changes, or a wrong slot fails at once. The next token and its log-probabilities depend on the
history alone, hence outputs must be equal whatever the batching, chunking, preemption and caching.

InstantRunner checks nothing and answers at once, to see how fast everything around a model is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_engine.core.messages import (
    ModelOutput,
    NewSequence,
    PendingStep,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
)

_MASK = (1 << 64) - 1
EMPTY_HISTORY = 0x9E3779B97F4A7C15

ChooseToken = Callable[[Sequence[int]], int]
FindFailure = Callable[[str, Sequence[int]], str | None]


def extend_history(history: int, token_id: int) -> int:
    """The hash of a token history with one more token: the simulated content of a KV slot."""
    mixed = (history ^ (token_id + 1)) * 0xBF58476D1CE4E5B9 & _MASK
    return mixed ^ (mixed >> 29)


def hash_adapter(adapter: str | None) -> int:
    """The history before the first token under an adapter."""
    history = EMPTY_HISTORY
    for byte in (adapter or "").encode():
        history = extend_history(history, byte)
    return history


def choose_by_hash(vocab_size: int) -> ChooseToken:
    """A deterministic function of the whole history, as a greedy model is."""

    def choose(history: Sequence[int]) -> int:
        value = EMPTY_HISTORY
        for token_id in history:
            value = extend_history(value, token_id)
        return value % vocab_size

    return choose


def follow_script(script: Sequence[int], num_prompt_tokens: int) -> ChooseToken:
    """The script's tokens one after the other, for a prompt of the given length."""
    return lambda history: script[len(history) - num_prompt_tokens]


def vary(token_id: int, sampling: SamplingParams, vocab_size: int) -> int:
    """Another choice for another seed, as a sampler would, so that answers to one prompt differ."""
    return token_id if sampling.seed is None else (token_id + 7 * sampling.seed) % vocab_size


def suppress(token_id: int, num_generated: int, sampling: SamplingParams, vocab_size: int) -> int:
    """The choice with the tokens masked that must not come before `min_tokens`."""
    if num_generated < sampling.min_tokens:
        while token_id in sampling.suppress_until_min_tokens:
            token_id = (token_id + 1) % vocab_size
    return token_id


def make_logprob(history: int, token_id: int, num_top: int, vocab_size: int) -> TokenLogprob:
    """Made-up log-probabilities of a token after a history (its hash): the same at every asking.

    The `num_top` likeliest are at -0.25, -0.5 and so on, and the token itself is of their rank if
    it is one of them.
    """
    top = tuple(((history + 7 * i) % vocab_size, -0.25 * (i + 1)) for i in range(num_top))
    for rank, (top_id, logprob) in enumerate(top, start=1):
        if top_id == token_id:
            return TokenLogprob(token_id=token_id, logprob=logprob, rank=rank, top=top)
    value = extend_history(history, token_id) % 1000
    return TokenLogprob(
        token_id=token_id, logprob=-6.0 - value / 1000, rank=num_top + 1 + value, top=top
    )


@dataclass(slots=True)
class _Held:
    """The runner's copy of one sequence; histories[i] is the hash up to and with token i."""

    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    first_history: int = EMPTY_HISTORY
    histories: list[int] = field(default_factory=list)
    failure: str | None = None

    def history_until(self, end: int) -> list[int]:
        last = self.histories[-1] if self.histories else self.first_history
        for token_id in self.token_ids[len(self.histories) : end]:
            last = extend_history(last, token_id)
            self.histories.append(last)
        return self.histories[:end]


class _DoneStep:
    def __init__(self, output: ModelOutput, wait: Callable[[], None]) -> None:
        self._output = output
        self._wait = wait

    def result(self) -> ModelOutput:
        self._wait()
        return self._output


class FakeRunner:
    """Executes steps at dispatch, in order, at any asynchronous depth.

    choose_token: next token from the history; default: a hash of it and the seed, below
    `vocab_size`.
    find_failure: (request id, history) to the reason why the row goes wrong, or None.
    before_result: called with the step when its result is taken, to simulate the device's time.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        vocab_size: int = 1000,
        choose_token: ChooseToken | None = None,
        find_failure: FindFailure | None = None,
        before_result: Callable[[SchedulerOutput], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.steps: list[SchedulerOutput] = []  # all that were dispatched
        self._choose_token = choose_token
        self._find_failure = find_failure
        self._before_result = before_result
        self._memory: list[int | None] = [None] * (num_blocks * block_size)
        self._held: dict[str, _Held] = {}
        self._holders = [0] * num_blocks  # how many held sequences have the block in their table

    @property
    def held_request_ids(self) -> set[str]:
        return set(self._held)

    def dispatch(self, scheduled: SchedulerOutput) -> PendingStep:
        self.steps.append(scheduled)
        for request_id in scheduled.dropped:
            for block_id in self._held.pop(request_id).block_ids:
                self._holders[block_id] -= 1
        for new in scheduled.new:
            self._take_in(new)
        for request_id, block_ids in scheduled.new_block_ids.items():
            self._hold_blocks(self._held[request_id], block_ids)
        assert len(set(scheduled.request_ids)) == len(scheduled.request_ids), "a row comes twice"
        # As on a device, all rows write before any row attends.
        for request_id, computed, count in zip(
            scheduled.request_ids,
            scheduled.num_computed_tokens,
            scheduled.num_scheduled_tokens,
            strict=True,
        ):
            self._write(request_id, computed, count, request_id in scheduled.attend_only)
        tokens: list[list[int]] = []
        failed: dict[str, str] = {}
        logprobs: dict[str, list[TokenLogprob]] = {}
        prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        for request_id, computed, count in zip(
            scheduled.request_ids,
            scheduled.num_computed_tokens,
            scheduled.num_scheduled_tokens,
            strict=True,
        ):
            held = self._held[request_id]
            self._attend(request_id, held, computed + count)
            sampled = self._sample(request_id, held, computed + count)
            tokens.append(sampled)
            if held.failure is not None:
                failed[request_id] = held.failure
                continue
            if sampled and held.sampling.num_logprobs is not None:
                start = len(held.token_ids) - 1
                num_top = held.sampling.num_logprobs
                logprobs[request_id] = self._list_logprobs(held, start, start + 1, num_top)
            if held.sampling.num_prompt_logprobs is not None:
                # Position i tells of token i + 1.
                end = min(computed + count + 1, held.num_prompt_tokens)
                num_top = held.sampling.num_prompt_logprobs
                found = self._list_logprobs(held, computed + 1, end, num_top)
                if found:
                    prompt_logprobs[request_id] = found
        wait = self._before_result
        return _DoneStep(
            ModelOutput(
                token_ids=tokens,
                failed=failed,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            ),
            (lambda: wait(scheduled)) if wait else lambda: None,
        )

    def _take_in(self, new: NewSequence) -> None:
        assert new.request_id not in self._held, f"{new.request_id} is new twice"
        held = _Held(list(new.token_ids), new.num_prompt_tokens, [], new.sampling)
        # An adapter changes the KV of equal tokens.
        held.first_history = hash_adapter(new.adapter)
        self._hold_blocks(held, new.block_ids)
        self._held[new.request_id] = held

    def _hold_blocks(self, held: _Held, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            assert 0 < block_id < self.num_blocks, f"block {block_id} is not to be used"
            held.block_ids.append(block_id)
            self._holders[block_id] += 1
        assert len(set(held.block_ids)) == len(held.block_ids), "a block comes twice in a table"

    def _write(self, request_id: str, computed: int, count: int, attend_only: bool) -> None:
        held = self._held[request_id]
        end = computed + count
        assert count >= 1, f"{request_id} has a row without tokens"
        if held.failure is not None:
            return  # its tokens are unknown since its row failed; the scheduler will hear of it
        assert end <= len(held.token_ids), f"{request_id} runs tokens that nobody knows"
        assert end <= len(held.block_ids) * self.block_size, f"{request_id} has too few blocks"
        history = held.history_until(end)
        if attend_only:
            assert count == 1, f"{request_id} attends only, so it runs one token"
            return
        for position in range(computed, end):
            block_id = held.block_ids[position // self.block_size]
            assert self._holders[block_id] == 1, f"{request_id} writes into a shared block"
            slot = block_id * self.block_size + position % self.block_size
            self._memory[slot] = history[position]

    def _attend(self, request_id: str, held: _Held, end: int) -> None:
        if held.failure is not None:
            return
        history = held.history_until(end)
        for index in range(-(-end // self.block_size)):
            start = index * self.block_size
            expected = history[start : start + self.block_size]
            first_slot = held.block_ids[index] * self.block_size
            found = self._memory[first_slot : first_slot + len(expected)]
            assert found == expected, (
                f"{request_id}: block {held.block_ids[index]} does not hold tokens "
                f"{start} to {start + len(expected) - 1} of its history"
            )

    def _list_logprobs(self, held: _Held, start: int, end: int, num_top: int) -> list[TokenLogprob]:
        """Of the sequence's tokens from position `start` up to `end`."""
        return [
            make_logprob(held.histories[i - 1], held.token_ids[i], num_top, self.vocab_size)
            for i in range(start, end)
        ]

    def _sample(self, request_id: str, held: _Held, end: int) -> list[int]:
        if held.failure is not None:
            return []
        if self._find_failure is not None:
            held.failure = self._find_failure(request_id, held.token_ids[:end])
            if held.failure is not None:
                return []
        if end < len(held.token_ids):
            return []
        if self._choose_token is not None:
            token_id = self._choose_token(held.token_ids)
        else:
            token_id = vary(held.histories[-1] % self.vocab_size, held.sampling, self.vocab_size)
        num_generated = end - held.num_prompt_tokens
        token_id = suppress(token_id, num_generated, held.sampling, self.vocab_size)
        assert 0 <= token_id < self.vocab_size, f"token {token_id} is not in the vocabulary"
        held.token_ids.append(token_id)
        return [token_id]


class InstantRunner:
    """Gives every sequence the tokens of `script`, over and over, in a constant time per row."""

    def __init__(self, script: Sequence[int]) -> None:
        assert script, "a script has at least one token"
        self._answers = [[token_id] for token_id in script]
        self._held: dict[str, int] = {}  # tokens known or on their way, by request id

    @property
    def held_request_ids(self) -> set[str]:
        return set(self._held)

    def dispatch(self, scheduled: SchedulerOutput) -> PendingStep:
        held, answers = self._held, self._answers
        for request_id in scheduled.dropped:
            del held[request_id]
        for new in scheduled.new:
            held[new.request_id] = len(new.token_ids)
        tokens: list[Sequence[int]] = []
        for request_id, computed, count in zip(
            scheduled.request_ids,
            scheduled.num_computed_tokens,
            scheduled.num_scheduled_tokens,
            strict=True,
        ):
            end = computed + count
            if end == held[request_id]:
                held[request_id] = end + 1
                tokens.append(answers[end % len(answers)])
            else:
                tokens.append(())
        return _DoneStep(ModelOutput(token_ids=tokens), _do_nothing)


def _do_nothing() -> None:
    return None
