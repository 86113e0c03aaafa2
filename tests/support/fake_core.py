"""A core process over the fake runner: `python fake_core.py SCENARIO ADDRESS SERVER_PID`."""

import sys
import threading
from pathlib import Path
from typing import Any

from octavo_engine.core_main import main
from octavo_engine.errors import CannotStart
from octavo_wire.failures import Reason

if __name__ == "__main__":  # started with -P: the helpers are not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.serving import FakeEngine, make_fake_engine, pace


def fake_core(scenario: str = "plain") -> list[str]:
    """The command of a core process; see `SCENARIOS`."""
    assert scenario in SCENARIOS
    return [sys.executable, "-P", __file__, scenario]


def _fail_in_third_step(scheduled: Any) -> None:
    if scheduled.step == 3:
        raise MemoryError("no more")


def _refuse() -> FakeEngine:
    raise CannotStart(Reason.INSUFFICIENT_MEMORY, "Too little memory.", "Give it more.")


def _crash() -> FakeEngine:
    raise ZeroDivisionError("by zero")


def _hang() -> FakeEngine:
    threading.Event().wait(60)
    raise AssertionError("nobody waited")


SCENARIOS = {
    "plain": make_fake_engine,
    "small": lambda: make_fake_engine(max_num_seqs=1, max_queued_requests=0),
    "slow": lambda: make_fake_engine(before_result=pace(0.02)),
    "fails": lambda: make_fake_engine(before_result=_fail_in_third_step),
    "refuses": _refuse,
    "crashes": _crash,
    "hangs": _hang,
}


def _load(settings: object, progress: Any) -> FakeEngine:
    progress("weights", 0.5)
    return SCENARIOS[scenario]()


if __name__ == "__main__":
    scenario = sys.argv[1]
    sys.exit(main(sys.argv[2:], _load))
