"""The engine's core as its own master: take commands, step, tell what came of it.

It sleeps on its commands while there is nothing to run. What it tells is handed over and taken in
by someone else, so the next step runs while the results of the last one are answered.
"""

from collections.abc import Callable, Sequence

from octavo_engine.core.request import RequestRecord
from octavo_engine.errors import RequestError
from octavo_engine.serving.core_messages import (
    Add,
    Command,
    CoreEvents,
    Finish,
    Refusal,
    StepSummary,
    Stop,
)
from octavo_engine.serving.engine import EngineCore, StepReport

# Called with whether to wait; returns what has come, at least one command if it waited.
Receive = Callable[[bool], Sequence[Command]]


class CoreLoop:
    """Runs an EngineCore until it is told to stop. What the core raises ends the loop."""

    def __init__(
        self, core: EngineCore, *, receive: Receive, send: Callable[[CoreEvents], None]
    ) -> None:
        self._core = core
        self._receive = receive
        self._send = send
        self._admitted: list[str] = []
        self._refused: list[Refusal] = []
        self._ended: list[RequestRecord] = []

    def run(self) -> None:
        while self._take_commands():
            steps = [summarize(report) for report in self._core.step()]
            if any(step.request_ids or step.updates for step in steps):
                self._tell(steps)

    def _take_commands(self) -> bool:
        """Carry out what waits, and wait while there is nothing to run; False means: stop."""
        while True:
            is_told_to_stop = False
            for command in self._receive(not self._core.has_work()):
                if isinstance(command, Stop):
                    is_told_to_stop = True
                else:
                    self._carry_out(command)
            # Said before the step: who is let in or refused need not wait for it.
            if self._admitted or self._refused or self._ended:
                self._tell([])
            if is_told_to_stop:
                return False
            if self._core.has_work():
                return True

    def _carry_out(self, command: Add | Finish) -> None:
        if isinstance(command, Add):
            request_id = command.spec.request_id
            try:
                self._core.add(command.spec)
                self._admitted.append(request_id)
            except RequestError as error:
                self._refused.append(Refusal.of(request_id, error))
            return
        record = self._core.finish(command.request_id, command.reason)
        if record is not None:
            self._ended.append(record)

    def _tell(self, steps: list[StepSummary]) -> None:
        events = CoreEvents(
            stats=self._core.stats(),
            admitted=self._admitted,
            refused=self._refused,
            steps=steps,
            ended=self._ended,
        )
        self._admitted, self._refused, self._ended = [], [], []
        self._send(events)


def summarize(report: StepReport) -> StepSummary:
    scheduled = report.scheduled
    return StepSummary(
        step=scheduled.step,
        request_ids=scheduled.request_ids,
        num_scheduled_tokens=scheduled.num_scheduled_tokens,
        started_s=report.started_s,
        ended_s=report.ended_s,
        updates=report.updates,
    )
