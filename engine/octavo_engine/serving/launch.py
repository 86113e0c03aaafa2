"""How a server gets a core: the same promise, whichever process the core ends up in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from octavo_engine.config import ModelDescription
from octavo_engine.core.messages import Runner
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.errors import OctavoError
from octavo_engine.serving.async_engine import CoreLink
from octavo_engine.serving.core_messages import CoreDescription
from octavo_engine.serving.engine import EngineCore


class LoadedEngine(Protocol):
    """What loading a model brings; see `build.BuiltEngine`."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def description(self) -> ModelDescription: ...


# Called with a phase of loading and its share done, 0 to 1.
Progress = Callable[[str, float], None]
Load = Callable[[Progress], LoadedEngine]


class CoreLost(OctavoError):
    """The core's process ended, of itself or by force; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedCore:
    """A core that is loaded and waits to be started."""

    core: CoreDescription
    link: CoreLink


# Raises CannotStart for what a user can put right. Cancelled, it leaves no process behind.
Launch = Callable[[Progress], Awaitable[LaunchedCore]]


def describe_core(engine: LoadedEngine, core: EngineCore) -> CoreDescription:
    return CoreDescription(
        model=engine.description, config=engine.scheduler.config, stats=core.stats()
    )
