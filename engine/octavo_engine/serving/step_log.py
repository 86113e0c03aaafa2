"""One line of JSON for every engine step: who shared it, and what it left of the cache."""

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO

from octavo_engine.core.request import RequestRecord, SchedulerStats
from octavo_engine.serving.core_messages import StepSummary


class StepLog(AbstractContextManager["StepLog"]):
    """Appends to a file, or to stderr for "-". Holds ids and numbers, never text."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the file cannot be written."""
        self._owned = path != "-"
        self._file: IO[str] = open(path, "a", encoding="utf-8") if self._owned else sys.stderr  # noqa: SIM115

    def on_step(self, step: StepSummary, stats: SchedulerStats) -> None:
        if not step.request_ids:
            return
        self._file.write(json.dumps(step_line(step, stats), separators=(",", ":")) + "\n")
        self._file.flush()

    def on_finish(self, record: RequestRecord, stats: SchedulerStats) -> None:
        """Steps alone are logged; a finished request is missing from the next one."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owned:
            self._file.close()


def step_line(step: StepSummary, stats: SchedulerStats) -> Mapping[str, object]:
    """The fields of a line. `tokens` is parallel to `request_ids`; seconds are the step's own."""
    return {
        "step": step.step,
        "request_ids": step.request_ids,
        "tokens": step.num_scheduled_tokens,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "free_blocks": stats.num_usable_blocks - stats.num_used_blocks,
        "preemptions": stats.num_preemptions,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
        "seconds": round(step.ended_s - step.started_s, 6),
    }
