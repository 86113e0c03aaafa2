"""Whether the process is to be kept, and whether it is to be sent requests."""

import time
from typing import Any

from octavo_engine.serving.state import Phase, ServerState


def liveness(state: ServerState) -> tuple[int, dict[str, Any]]:
    """200 while the process can do its work or is on the way to, loading and draining included."""
    engine_lives = state.served is None or state.served.engine.is_alive
    alive = state.phase is not Phase.DEAD and engine_lives
    return (200, {"status": "alive"}) if alive else (503, {"status": Phase.DEAD.value})


def readiness(state: ServerState) -> tuple[int, dict[str, Any]]:
    """200 only while new requests are taken."""
    if state.phase is Phase.READY and liveness(state)[0] == 200:
        return 200, {"status": Phase.READY.value, "model": state.model_name}
    body: dict[str, Any] = {"status": state.phase.value}
    if state.phase is Phase.LOADING:
        step, share = state.loading
        body["loading"] = {"step": step, "share": round(share, 3)}
        body["seconds"] = round(time.monotonic() - state.started_s, 1)
    return 503, body
