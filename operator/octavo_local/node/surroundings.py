"""What a process finds in its environment besides what its container's spec says.

It starts from nothing: no variable of the user's shell reaches a pod, so no secret does either.
"""

import os
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from octavo_local.objects import name_of
from octavo_local.quantities import parse_quantity
from octavo_wire import names

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_base_environment(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    pod_ip: str,
    home: Path,
    message_file: Path,
    kubeconfig: Path | None,
) -> dict[str, str]:
    """The variables that a container image and a container runtime would set."""
    limits = (container.get("resources") or {}).get("limits") or {}
    env = {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "HOSTNAME": str(pod["spec"].get("hostname") or name_of(pod)),
        "PYTHONUNBUFFERED": "1",  # a log that is followed shows a line when it is written
        names.ENV_HOST: pod_ip,
        names.ENV_TERMINATION_LOG: str(message_file),
        "OCTAVO_DEVICE": "auto",
        "OCTAVO_DRAIN_ACCEPT_SECONDS": "0",  # the local ports follow endpoints at once
    }
    if "memory" in limits:
        env[names.ENV_MEMORY_LIMIT] = str(int(parse_quantity(limits["memory"])))
    if "cpu" in limits:
        env[names.ENV_CPU_LIMIT] = _decimal(parse_quantity(limits["cpu"]))
    if not parse_quantity(limits.get(names.GPU_RESOURCE, 0)):
        env["CUDA_VISIBLE_DEVICES"] = ""  # a pod that asked for no GPU sees none
    if kubeconfig is not None:
        env["KUBECONFIG"] = str(kubeconfig)
    return env


def cache_home() -> Path:
    """Where the node's HOME lies: kept between runs, so that compiled kernels are too."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "octavo" / "local-home"


def _decimal(value: Fraction) -> str:
    return f"{float(value):g}"
