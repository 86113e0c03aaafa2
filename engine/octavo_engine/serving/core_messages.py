"""What the server and the engine's core say to each other, in one process or across two.

    server ─ list of Add, Finish, Stop ─► core
    server ◄──────────── CoreEvents ───── core     once a step, and once a batch of commands

Before that, a core in a process of its own says that it is there (Connected), is told what to load
(Start) and tells how that goes (LoadProgress, then Loaded or LoadFailed). CoreFailed is its last
word, should it have one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from octavo_engine.config import ModelDescription
from octavo_engine.core.request import (
    FinishReason,
    RequestRecord,
    RequestSpec,
    SchedulerStats,
    SequenceUpdate,
)
from octavo_engine.core.scheduler_config import SchedulerConfig
from octavo_engine.errors import ContextTooLong, InvalidRequest, Overloaded, RequestError
from octavo_wire.failures import StartupFailure
from octavo_wire.settings import EngineSettings


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    spec: RequestSpec


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=True):
    request_id: str
    reason: FinishReason


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End after the present step."""


Command = Add | Finish | Stop


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """The RequestError that the scheduler answered an Add with."""

    request_id: str
    kind: str
    message: str
    param: str | None = None
    retry_after_s: int = 0

    @classmethod
    def of(cls, request_id: str, error: RequestError) -> "Refusal":
        return cls(
            request_id=request_id,
            kind=type(error).__name__,
            message=error.message,
            param=error.param,
            retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else 0,
        )

    def to_error(self) -> RequestError:
        if self.kind == Overloaded.__name__:
            return Overloaded(self.message, retry_after_s=self.retry_after_s)
        return _REFUSALS[self.kind](self.message, param=self.param)


_REFUSALS: Final = {kind.__name__: kind for kind in (ContextTooLong, InvalidRequest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """A step that was taken in: who shared it, how long it took, and what it brought."""

    step: int
    request_ids: list[str]
    num_scheduled_tokens: list[int]  # parallel to request_ids
    started_s: float
    ended_s: float
    updates: list[SequenceUpdate]


class CoreEvents(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What happened since the last word: admissions, steps, ends from outside; state now."""

    stats: SchedulerStats
    admitted: list[str]
    refused: list[Refusal]
    steps: list[StepSummary]
    ended: list[RequestRecord]  # by Finish; the other ends are in the updates of the steps


class Connected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The core's first word: from now on the server can reach it."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    settings: EngineSettings


class LoadProgress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    phase: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreDescription:
    """A loaded core: its model, the limits that it schedules within, and its state at first."""

    model: ModelDescription
    config: SchedulerConfig
    stats: SchedulerStats = field(default_factory=SchedulerStats)


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    core: CoreDescription


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    failure: StartupFailure


class CoreFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    error: str


CoreMessage = CoreEvents | Connected | LoadProgress | Loaded | LoadFailed | CoreFailed

_ENCODER: Final = msgspec.msgpack.Encoder()
_CORE_MESSAGE_DECODER: Final = msgspec.msgpack.Decoder(CoreMessage)
_START_DECODER: Final = msgspec.msgpack.Decoder(Start)
_COMMAND_DECODER: Final = msgspec.msgpack.Decoder(list[Command])


def encode(message: CoreMessage | Start | Sequence[Command]) -> bytes:
    return _ENCODER.encode(message)


def decode_core_message(data: bytes) -> CoreMessage:
    return _CORE_MESSAGE_DECODER.decode(data)


def decode_start(data: bytes) -> Start:
    return _START_DECODER.decode(data)


def decode_commands(data: bytes) -> list[Command]:
    return _COMMAND_DECODER.decode(data)
