"""Where the server stands in its life, and what it serves once it stands.

loading ─► ready ─► leaving ─► draining ─► (process ends)
   └─────────┴─────────┴──────────┴─► dead ─► (process ends, status not 0)

A server that is leaving is not ready, but takes requests: whoever routes to it may not know yet.
"""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from octavo_engine.config import ModelDescription
from octavo_engine.core.admission import Admission
from octavo_engine.core.scheduler_config import SchedulerConfig
from octavo_engine.serving.async_engine import AsyncEngine
from octavo_engine.serving.errors import NotReady
from octavo_engine.serving.metrics import EngineMetrics
from octavo_engine.serving.prefill_rate import PrefillRate
from octavo_engine.serving.prompts import PromptEncoder

_RETRY_AFTER_S: Final = 5


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A loaded model with everything that answers requests for it."""

    model: ModelDescription
    prompts: PromptEncoder
    engine: AsyncEngine
    limits: SchedulerConfig

    def check_admissible(self, num_prompt_tokens: int) -> None:
        """Raise ContextTooLong for a prompt that the core would refuse, however long it waits."""
        capacity = self.model.cache.usable_tokens
        Admission(self.limits, capacity).check_admissible(num_prompt_tokens)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Owned by the event loop; routes read it."""

    model_name: str  # what requests put into `model`
    metrics: EngineMetrics
    prefill_rate: PrefillRate = field(default_factory=PrefillRate)
    phase: Phase = Phase.LOADING
    loading: tuple[str, float] = ("start", 0.0)  # phase of the loading and its share done
    started_s: float = field(default_factory=time.monotonic)
    created_s: int = field(default_factory=lambda: int(time.time()))
    served: Served | None = None

    def require_served(self) -> Served:
        """What answers requests. Raises NotReady with the reason while nothing does."""
        if self.phase in (Phase.READY, Phase.LEAVING) and self.served is not None:
            return self.served
        reasons = {
            Phase.LOADING: ("The model is still loading", "model_loading"),
            Phase.DRAINING: ("The server is shutting down", "shutting_down"),
        }
        message, code = reasons.get(self.phase, ("The engine has stopped", "engine_stopped"))
        raise NotReady(f"{message}; try again later", code=code, retry_after_s=_RETRY_AFTER_S)
