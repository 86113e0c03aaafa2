"""Real helm for tests: the one that charts/sync.py renders with."""

import json
from collections.abc import Mapping, Sequence

from helm_cli import CHART, REPOSITORY, extract_helm, helm, template

__all__ = ["CHART", "REPOSITORY", "extract_helm", "helm", "set_flags", "template"]


def set_flags(values: Mapping[str, object]) -> Sequence[str]:
    """`--set-json` flags for a flat mapping of dotted paths to values."""
    return [
        part
        for path, value in values.items()
        for part in ("--set-json", f"{path}={json.dumps(value)}")
    ]
