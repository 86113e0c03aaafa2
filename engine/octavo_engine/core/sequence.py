"""A request on its way through the scheduler: what is known of it and how far it is computed.

token_ids            prompt, then every generated token that the host has seen
num_placeholders     tokens that steps under way will bring; 0 between steps at depth 0
num_tokens           both together: where the sequence will stand when those steps are done
num_computed_tokens  of these, how many the steps handed out so far compute

|<------------ token_ids ------------>|<- placeholders ->|
|<- num_computed_tokens ->|<-- to be scheduled --------->|
"""

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from octavo_engine.core.block_hash import BlockKey
from octavo_engine.core.messages import TokenLogprob
from octavo_engine.core.request import FinishReason, RequestRecord, RequestSpec

_BEFORE_ALL: Final = -math.inf


class SequenceState(Enum):
    HELD = auto()  # a fork; comes into the queue when the prompt of its source is computed
    WAITING = auto()  # in the queue: new, or preempted
    RUNNING = auto()  # has a seat and blocks
    DRAINING = auto()  # gave both back; its last tokens are still on their way from the device
    FINISHED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """What a sequence needed when it could not enter; worth another look at a later step."""

    num_blocks: int
    num_tokens: int
    look_again_step: int


class Sequence:
    """Mutable; only the scheduler and the KV cache manager write to it."""

    __slots__ = (
        "block_ids",
        "block_keys",
        "blocked",
        "first_scheduled_s",
        "first_token_s",
        "last_token_s",
        "max_total_tokens",
        "num_cached_tokens",
        "num_committed_blocks",
        "num_computed_tokens",
        "num_overtaken",
        "num_placeholders",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "num_queued_tokens",
        "num_tokens",
        "number",
        "order",
        "request_id",
        "sampling",
        "source",
        "spec",
        "state",
        "token_ids",
    )

    def __init__(
        self,
        spec: RequestSpec,
        *,
        number: int,
        max_total_tokens: int,
        source: "Sequence | None" = None,
    ) -> None:
        self.spec = spec
        self.request_id = spec.request_id
        self.sampling = spec.sampling
        self.token_ids = list(spec.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_total_tokens = max_total_tokens  # prompt and output; reaching it ends the request
        self.number = number
        # Lower is served first.
        self.order: tuple[float, float, int] = (spec.priority, spec.arrival_s, number)
        self.source = source  # whose prompt blocks it shares when it enters, if they are there
        self.state = SequenceState.WAITING
        self.num_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_placeholders = 0
        self.block_ids: list[int] = []
        self.block_keys: list[BlockKey] = []  # of the full blocks of token_ids, as far as needed
        self.num_committed_blocks = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_prompt_logprobs = 0  # prompt tokens after the first whose logprobs were handed out
        self.num_queued_tokens = 0  # what it counts for in the queue's tokens, until it begins
        self.num_overtaken = 0  # sequences that entered while there were no blocks for this one
        self.blocked: Blocked | None = None  # what was found when it could not enter
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    def grow_old(self) -> None:
        """Come before all that are not old, whatever their priority."""
        self.order = (_BEFORE_ALL, self.spec.arrival_s, self.number)

    def take_prompt_logprobs(self, start: int, found: list[TokenLogprob]) -> list[TokenLogprob]:
        """Those of a row from position `start` that were not handed out before a preemption."""
        num_known = self.num_prompt_logprobs - start
        assert num_known >= 0, f"{self.request_id}: the log-probabilities of a position are missing"
        fresh = found[num_known:]
        self.num_prompt_logprobs += len(fresh)
        return fresh

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def max_reusable_tokens(self) -> int:
        """Known tokens whose computation nobody needs again, if their KV is there.

        A position predicts the next one, so prompt log-probabilities that were not handed out yet
        need all positions from the last one that was.
        """
        wants_all = self.sampling.num_prompt_logprobs is not None
        if wants_all and self.num_prompt_logprobs < self.num_prompt_tokens - 1:
            return self.num_prompt_logprobs
        return len(self.token_ids)

    def make_record(
        self,
        reason: FinishReason,
        now: float,
        error: str | None = None,
        *,
        is_deadline_exceeded: bool = False,
    ) -> RequestRecord:
        return RequestRecord(
            request_id=self.spec.request_id,
            finish_reason=reason,
            error=error,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            arrival_s=self.spec.arrival_s,
            first_scheduled_s=self.first_scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            finished_s=now,
            is_deadline_exceeded=is_deadline_exceeded,
        )
