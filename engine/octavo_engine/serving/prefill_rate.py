"""How fast the engine computes prompts, measured from its steps."""

from octavo_engine.core.request import RequestRecord, SchedulerStats
from octavo_engine.serving.core_messages import StepSummary

# How much of the past counts: of a second of prefilling, two thirds are the last 10 s of it.
_MEMORY_S = 10.0


class PrefillRate:
    """Prompt tokens computed per second, over the steps that computed some. An Observer."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """None until a prompt was computed."""
        return self._tokens / self._seconds if self._seconds else None

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        tokens = sum(count for count in step.num_scheduled_tokens if count > 1)
        if not tokens:
            return
        seconds = step.ended_s - step.started_s
        keep = max(0.0, 1.0 - seconds / _MEMORY_S)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None:
        """What counts are steps."""
