"""What an operator of a server may choose about its API."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.serving.sampling import MaxTokensPolicy
from octavo_wire.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Defaults are those of the settings of the same names.

    access_log: gets one line for each request but probes and scrapes.
    """

    max_tokens_policy: MaxTokensPolicy = "reject"
    request_timeout_s: float | None = None  # longest that any request may take
    metrics_need_key: bool = False
    access_log: Callable[[str], None] | None = None

    @classmethod
    def from_settings(
        cls, settings: EngineSettings, *, access_log: Callable[[str], None] | None = None
    ) -> "ApiOptions":
        return cls(
            max_tokens_policy="clamp" if settings.max_tokens_policy == "clamp" else "reject",
            request_timeout_s=settings.request_timeout_seconds,
            metrics_need_key=settings.metrics_need_key,
            access_log=access_log,
        )
