"""What the scheduler and the runner say to each other, once a step each way.

    schedule() ─► SchedulerOutput ─► Runner.dispatch() ─► PendingStep
                                                               │ result()
    update()  ◄─────────────── ModelOutput ◄───────────────────┘

The scheduler owns the truth about every request: its tokens, its blocks, how far it is computed.
The runner keeps a copy of what it needs (token ids, block table, sampling parameters) that these
messages keep up to date, so a step costs what changed and not what exists. Rows of one step are
parallel lists, since one object per sequence and step would cost more than the decisions do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens of one sequence, checked by whoever makes it (serving, or a test).

    temperature below 1e-5 is greedy. top_k 0 and top_p 1.0 and min_p 0.0 mean: off.
    repetition_penalty counts prompt and output; presence and frequency count the output only.
    A seed makes the choice a function of (seed, position) alone.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence tokens included, unless ignored
    suppress_until_min_tokens: frozenset[int] = frozenset()  # ids masked before min_tokens
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what to add to its logit)
    allowed_token_ids: frozenset[int] | None = None  # None: all of them
    num_logprobs: int | None = None  # None: off; 0: of the chosen token; k: of the k likeliest too
    num_prompt_logprobs: int | None = None  # the same, for every prompt token but the first


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural log-probabilities at one position, of the raw logits.

    `rank` of the token counts from 1, the likeliest; `top` is (token id, logprob), likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence that the runner does not hold yet: new, or resumed after a preemption."""

    request_id: str
    token_ids: list[int]  # prompt, then what was generated before a preemption
    num_prompt_tokens: int
    block_ids: list[int]  # logical block i of the sequence lives in physical block block_ids[i]
    sampling: SamplingParams
    adapter: str | None = None  # weights to add to the model's, which change the KV, too


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step. Row i runs `num_scheduled_tokens[i]` tokens from position `num_computed_tokens[i]`.

    A row whose tokens reach the end of what is known of its sequence samples the next one.
    `dropped` leave the runner before `new` enter it; an id may be in both (preempted, resumed).
    `attend_only` rows found everything cached: their one token is computed again for its logits,
    reads the cache and must not write it (slot -1), since other sequences may share the block.
    """

    step: int
    request_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)  # to append to block tables
    attend_only: frozenset[str] = frozenset()
    dropped: list[str] = field(default_factory=list)  # finished, aborted or preempted

    @property
    def is_empty(self) -> bool:
        return not self.request_ids

    @property
    def total_tokens(self) -> int:
        return sum(self.num_scheduled_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutput:
    """Tokens of one step: row i got `token_ids[i]`, empty while its prompt is not yet computed.

    `failed` names the requests whose row went wrong (logits that are not numbers) and why;
    their token list is empty.
    """

    token_ids: Sequence[Sequence[int]]
    failed: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)  # of the new tokens
    # Of the prompt tokens that this step's positions predict, in order.
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)


class PendingStep(Protocol):
    """A step under way on the device."""

    def result(self) -> ModelOutput:
        """Wait for the step and take its tokens. Called once."""
        ...


class Runner(Protocol):
    """Executes steps in the order in which they are dispatched; only it knows torch.

    With asynchronous depth d, up to d further steps are dispatched before the first one's result
    is taken. A row may then start from a token that the host has not seen yet: the runner takes it
    from its own last output. Depth 0 takes each result before the next dispatch.
    """

    def dispatch(self, scheduled: SchedulerOutput) -> PendingStep:
        """Start a step. An output with no rows still carries `dropped`."""
        ...
