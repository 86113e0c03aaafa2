"""The engine's loop: decide what runs, run it, take in what came of it.

    add, finish ─► Scheduler ─ schedule() ─► Runner.dispatch() ─► PendingStep
                       ▲                                              │
                       └───────────────── update() ◄── result() ──────┘

With depth 0 every step is taken in before the next one is decided. With depth d, d further steps
are under way meanwhile. The loop is the same; only how many steps may be pending differs.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from octavo_engine.core.messages import PendingStep, Runner, SchedulerOutput
from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.core.scheduler import Scheduler

# Steps in a row that schedule nothing although there is work. A sound scheduler never does that;
# if it happens, a process that ends and starts again is better than one that hangs.
_MAX_IDLE_STEPS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A step that was taken in: what ran, what came of it, how long it took."""

    scheduled: SchedulerOutput
    updates: list[SequenceUpdate]
    started_s: float
    ended_s: float


class EngineCore:
    """Scheduler and runner as one machine. Used by one thread; `clock` is in seconds."""

    def __init__(self, scheduler: Scheduler, runner: Runner, *, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._depth = scheduler.config.async_depth
        self._pending: deque[tuple[SchedulerOutput, PendingStep, float]] = deque()
        self._idle_steps = 0

    def add(self, spec: RequestSpec) -> None:
        """Raises ContextTooLong or Overloaded; then the request does not exist."""
        self._scheduler.add(spec)

    def finish(self, request_id: str, reason: FinishReason) -> RequestRecord | None:
        """End a request from outside; None when it has ended already."""
        return self._scheduler.finish(request_id, reason, self._clock())

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def step(self) -> list[StepReport]:
        """Decide a step, start it, and take in the steps that are due, oldest first."""
        scheduled = self._scheduler.schedule(self._clock())
        self._dispatch(scheduled)
        return self._update(keep=0 if scheduled.is_empty else self._depth)

    def _dispatch(self, scheduled: SchedulerOutput) -> None:
        started_s = self._clock()
        self._pending.append((scheduled, self._runner.dispatch(scheduled), started_s))

    def _update(self, *, keep: int) -> list[StepReport]:
        reports = []
        while len(self._pending) > keep:
            scheduled, pending, started_s = self._pending.popleft()
            output = pending.result()
            ended_s = self._clock()
            updates = self._scheduler.update(scheduled, output, ended_s)
            reports.append(
                StepReport(
                    scheduled=scheduled, updates=updates, started_s=started_s, ended_s=ended_s
                )
            )
        self._check_progress(reports)
        return reports

    def _check_progress(self, reports: list[StepReport]) -> None:
        """Raise when nothing has run for long although there is work, rather than hang."""
        nothing_ran = all(report.scheduled.is_empty for report in reports) and not self._pending
        self._idle_steps = self._idle_steps + 1 if nothing_ran and self.has_work() else 0
        if self._idle_steps > _MAX_IDLE_STEPS:
            raise RuntimeError(
                f"the scheduler has work but scheduled nothing for {_MAX_IDLE_STEPS} steps: "
                f"{self.stats()}"
            )
