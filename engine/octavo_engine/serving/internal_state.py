"""The compact page that autoscaler and gateway read: how full the engine is, in one line of JSON.

Made from what the server already holds; it asks nothing of the core.
"""

import json
import time
from typing import Any

from octavo_engine.serving.state import ServerState


def internal_state(state: ServerState) -> bytes:
    """The body of /internal/state, in UTF-8 JSON."""
    page: dict[str, Any] = {
        "model": state.model_name,
        "phase": state.phase.value,
        "uptime_s": round(time.monotonic() - state.started_s, 1),
    }
    served = state.served
    if served is not None:
        stats = served.engine.stats
        free_blocks = stats.num_usable_blocks - stats.num_used_blocks
        rate = state.prefill_rate.tokens_per_s
        page |= {
            "alive": served.engine.is_alive,
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "waiting_tokens": stats.num_waiting_tokens,
            "open_requests": served.engine.num_open_requests,
            "max_num_seqs": served.limits.max_num_seqs,
            "max_model_len": served.model.max_model_len,
            "block_size": served.model.cache.block_size,
            "usable_blocks": stats.num_usable_blocks,
            "free_blocks": free_blocks,
            "kv_cache_usage": round(stats.num_used_blocks / stats.num_usable_blocks, 4),
            "preemptions": stats.num_preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "prefill_tokens_per_s": None if rate is None else round(rate, 1),
        }
    return json.dumps(page, separators=(",", ":")).encode()
