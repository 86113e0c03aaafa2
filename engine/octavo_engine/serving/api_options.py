"""What an operator of a server may choose about its API."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Defaults are those of the settings of the same names.

    priority_wait_s: 0 where requests are served in the order of their arrival alone.
    access_log: gets one line for each request but probes and scrapes.
    """

    max_tokens_policy: str = "reject"  # or "clamp"
    priority_wait_s: float = 60.0
    request_timeout_s: float | None = None  # longest that any request may take
    metrics_need_key: bool = False
    access_log: Callable[[str], None] | None = None
