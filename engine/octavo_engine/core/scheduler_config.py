"""The numbers that scheduling depends on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`num_blocks` includes the null block.

    async_depth: steps that may be under way when the next one is scheduled.
    max_queued_requests: requests that may wait beyond those for which a seat is free.
    max_queued_tokens: tokens of prompts that have not begun. A lone prompt may be longer.
    prefill_share: the most that one prompt takes of a step while others have prompts to compute.
    priority_wait_s: time from a request's arrival in which more urgent ones go before it.
    max_overtakes: requests that may enter before an earlier one for which there are no blocks yet.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool = True
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1 << 20
    prefill_share: float = 0.5
    max_overtakes: int = 16
    priority_wait_s: float = 60.0
    async_depth: int = 0

    def __post_init__(self) -> None:
        assert self.num_blocks >= 2, "the pool needs the null block and one more"
        assert self.max_model_len >= 2, "a sequence is a prompt and an answer"
        assert min(self.block_size, self.max_num_seqs, self.max_num_batched_tokens) >= 1
        assert min(self.max_queued_requests, self.async_depth, self.max_overtakes) >= 0
        assert self.max_queued_tokens >= 1, "the queue must take one prompt"
        assert self.priority_wait_s >= 0.0, "a wait is no less than nothing"
        assert 0.0 < self.prefill_share <= 1.0, "a share is more than nothing, at most all"

    @property
    def num_seats(self) -> int:
        """Sequences that can run at once: each takes at least one token of every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
