"""What comes into the scheduler and what comes out of it, as serving sees it."""

from dataclasses import dataclass, field
from enum import StrEnum

from octavo_engine.core.messages import SamplingParams, TokenLogprob


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token, or a stop string that serving found
    LENGTH = "length"  # max_tokens, the context, or the whole KV cache is used up
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the request's own row failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """A request as it is handed to the scheduler. `arrival_s` is on the clock of `now`."""

    request_id: str  # unique; serving makes it, a client's own id never gets here
    prompt_token_ids: list[int]  # at least one
    sampling: SamplingParams
    arrival_s: float
    priority: int = 0  # lower runs first; equal ones by arrival
    cache_salt: str | None = None  # sequences share cached blocks only under the same salt
    adapter: str | None = None  # weights added to the model's; a runner without any refuses it
    # Another choice for an earlier request's prompt (n > 1): waits until that prompt is computed,
    # then shares its full blocks. If the other one has ended, this is a request like any other.
    fork_of: str | None = None
    deadline_s: float | None = None  # ends with what it has then; on the clock of `now`


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The whole story of a request that has ended, for usage, metrics and logs. Clock of `now`.

    Each choice (n > 1) is a request of its own and has its own record; the tokens that a fork
    shares are cached tokens of its record, so an answer's usage takes the first choice's.
    """

    request_id: str
    finish_reason: FinishReason
    error: str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int  # of the prompt, found by the first look-up
    num_preemptions: int
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    finished_s: float
    is_deadline_exceeded: bool = False  # ended at its deadline: ABORT, and `error` says so


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceUpdate:
    """What a step brought for one request: new tokens, and its record when it has ended.

    No new tokens come with prompt log-probabilities of a chunk, nor with an end by deadline.
    """

    request_id: str
    new_token_ids: list[int]
    num_cached_tokens: int
    record: RequestRecord | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one for each new token, if asked
    # Of the prompt's tokens but the first, in order, each once, over as many updates as it takes.
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot for gauges and counters; counters only grow."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0  # of prompts that have not begun
    num_usable_blocks: int = 0  # the null block excluded
    num_used_blocks: int = 0  # referenced by some sequence
    prefix_query_tokens: int = 0  # forks ask for no prefix, so they are in neither of the two
    prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=dict)
