"""Whether a live object still is what was asked for."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from octavo_operator.api.quantities import parse_quantity
from octavo_operator.core.names import ANNOTATION_MANIFEST


def has_drifted(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether applying `wanted` would change `live`, which has defaults and foreign fields too.

    The hash annotation tells of fields that are wanted no more; comparing the fields themselves
    tells of those that somebody else has changed.
    """
    annotations = live["metadata"].get("annotations") or {}
    wanted_hash = wanted["metadata"]["annotations"][ANNOTATION_MANIFEST]
    return annotations.get(ANNOTATION_MANIFEST) != wanted_hash or not _covers(live, wanted)


def _covers(live: object, wanted: object, *, quantities: bool = False) -> bool:
    """Whether `live` holds all of `wanted`; `quantities`: texts below are such."""
    if isinstance(wanted, Mapping):
        # The API leaves empty objects out.
        return isinstance(live, Mapping) and all(
            _covers(live.get(key), value, quantities=quantities or key == "resources")
            or (not value and key not in live)
            for key, value in wanted.items()
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return (
            isinstance(live, Sequence)
            and len(live) == len(wanted)
            and all(_covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return live == wanted or (quantities and _same_quantity(live, wanted))


def _same_quantity(live: object, wanted: object) -> bool:
    """Whether the API would store both alike: 1024Mi as 1Gi, and no less than a thousandth."""
    if not isinstance(live, str | int) or not isinstance(wanted, str):
        return False
    try:
        return _thousandths(str(live)) == _thousandths(wanted)
    except ValueError:
        return False


def _thousandths(quantity: str) -> int:
    return ceil(parse_quantity(quantity) * 1000)
