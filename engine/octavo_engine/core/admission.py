"""Which requests are let in: those that can be served at all, and for which the queue has room.

What is refused for room is told when to come back: after the time in which the queue as it stands
will be worked off at the pace of late. Not earlier, for all that are refused meanwhile come back.
"""

import math
from typing import Final

from octavo_engine.core.scheduler_config import SchedulerConfig
from octavo_engine.errors import ContextTooLong, Overloaded

_MIN_RETRY_S: Final = 1
_MAX_RETRY_S: Final = 60
_FIRST_GUESS_S: Final = 5.0  # before there is any pace to go by
_MEMORY_S: Final = 30.0  # what was this long ago counts a third (1/e) of what is now


class Pace:
    """How fast requests end and prompts begin, over the last busy half minute or so."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._requests = 0.0
        self._tokens = 0.0
        self._seen_s: float | None = None

    def pass_time(self, now: float, *, is_busy: bool) -> None:
        """Let time pass up to now. Time without work says nothing about the pace."""
        if self._seen_s is not None:
            elapsed = max(0.0, now - self._seen_s)
            keep = math.exp(-elapsed / _MEMORY_S)
            self._busy_s = self._busy_s * keep + elapsed
            self._requests *= keep
            self._tokens *= keep
        self._seen_s = now if is_busy else None

    def count_end(self) -> None:
        self._requests += 1.0

    def count_begin(self, num_tokens: int) -> None:
        self._tokens += num_tokens

    def decide_retry_after_s(self, num_requests: int, num_tokens: int) -> int:
        """Seconds until this many have ended and begun, within 1 and 60."""
        wait = max(
            self._expect(num_requests, self._requests), self._expect(num_tokens, self._tokens)
        )
        return max(_MIN_RETRY_S, min(_MAX_RETRY_S, math.ceil(wait)))

    def _expect(self, amount: int, counted: float) -> float:
        if amount <= 0:
            return 0.0
        if counted < 0.01:
            # Nothing of late: expect it to take as long again as it has taken so far.
            return max(_FIRST_GUESS_S, self._busy_s)
        return amount * self._busy_s / counted


class Admission:
    """The limits, and what waits before them."""

    def __init__(self, config: SchedulerConfig, capacity_tokens: int) -> None:
        self._config = config
        self._capacity_tokens = capacity_tokens
        self.pace = Pace()
        self.num_queued_tokens = 0  # of prompts that have not begun

    def check_admissible(self, num_prompt_tokens: int) -> None:
        """Raise ContextTooLong for a prompt that could never be answered, however long it waits."""
        limit, capacity = self._config.max_model_len, self._capacity_tokens
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

    def check_room(self, num_tokens: int, num_requests_here: int) -> None:
        """Raise Overloaded when the queue has no room for one more with so many tokens to begin.

        num_requests_here: those that run or wait. A fork has no tokens of its own to begin.
        """
        config = self._config
        num_queued = num_requests_here - config.num_seats
        if num_queued >= config.max_queued_requests:
            wait_s = self.pace.decide_retry_after_s(num_queued + 1, 0)
            raise Overloaded(
                f"The engine serves {config.num_seats} requests at once and its queue of "
                f"{config.max_queued_requests} is full. Try again in {wait_s} s.",
                retry_after_s=wait_s,
            )
        queued = self.num_queued_tokens
        if num_tokens and queued and queued + num_tokens > config.max_queued_tokens:
            wait_s = self.pace.decide_retry_after_s(0, queued)
            raise Overloaded(
                f"Prompts of {queued} tokens wait to begin, and {num_tokens} more would exceed the "
                f"queue's {config.max_queued_tokens} tokens. Try again in {wait_s} s.",
                retry_after_s=wait_s,
            )

    def enqueue(self, num_tokens: int) -> None:
        self.num_queued_tokens += num_tokens

    def begin(self, num_tokens: int) -> None:
        self.num_queued_tokens -= num_tokens
        self.pace.count_begin(num_tokens)

    def leave_unbegun(self, num_tokens: int) -> None:
        self.num_queued_tokens -= num_tokens
