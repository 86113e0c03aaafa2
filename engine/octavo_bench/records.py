"""What came of one request, and the kinds of failure. Times are seconds of one monotonic clock."""

from dataclasses import dataclass, field
from enum import StrEnum


class Failure(StrEnum):
    """Why a request has no answer; a refusal by the server is told by its status instead."""

    CONNECT = "connect"  # no connection was made
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"  # the connection or the stream ended before the answer did
    ERROR_EVENT = "error_event"  # the stream told of an error
    MALFORMED = "malformed"  # an answer that is not of the OpenAI API


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request. `failure` is a kind (a Failure, or `http_429` and the like), None: it went well.

    `token_times_s` are the arrivals of chunks that carry text; a chunk may carry several tokens.
    """

    sent_s: float
    ended_s: float
    late_s: float = 0.0  # how long after it was due the client sent it
    token_times_s: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: str | None = None
    detail: str = ""
    streamed: bool = True

    @property
    def output_tokens(self) -> int:
        """By the server's usage; the number of chunks where it told none."""
        if self.completion_tokens is None:
            return len(self.token_times_s)
        return self.completion_tokens
