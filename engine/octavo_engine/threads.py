"""One pool of compute threads, sized from the CPU limit, that sleeps while it waits.

OpenMP's threads spin between regions by default. With a second busy process on the same cores that
makes a step five to ten times slower, so waiting is made passive; the libraries read this from the
environment once, when torch is imported.
"""

import math
import os
import sys
from collections.abc import MutableMapping

from octavo_engine.limits import cpu_limit

_COUNT_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_PASSIVE_WAITING = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",  # GNU's OpenMP
    "KMP_BLOCKTIME": "0",  # Intel's and LLVM's
}


def thread_count(limit: float) -> int:
    """Compute threads for a CPU limit: never more than whole cores, never none."""
    return max(1, math.floor(limit))


def configure_threads(env: MutableMapping[str, str] = os.environ) -> int:
    """Set the environment of the compute libraries; returns the number of threads.

    To be called before torch is imported. What the user has set by hand stays.
    """
    assert "torch" not in sys.modules, "torch reads its thread settings when it is imported"
    count = thread_count(cpu_limit(env))
    for name in _COUNT_VARIABLES:
        env.setdefault(name, str(count))
    for name, value in _PASSIVE_WAITING.items():
        env.setdefault(name, value)
    return count


def apply_to_torch(env: MutableMapping[str, str] = os.environ) -> int:
    """Size torch's pool likewise; returns the number of threads."""
    import torch

    chosen = env.get(_COUNT_VARIABLES[0], "")
    count = int(chosen) if chosen.isdigit() and int(chosen) else thread_count(cpu_limit(env))
    torch.set_num_threads(count)
    return count
