"""Kubernetes quantities ("500m", "3Gi", "1e3") as exact numbers."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

_SCALES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(10 ** (3 * n)) for n, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{
        unit: Fraction(2 ** (10 * n))
        for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
}
_PATTERN: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]i?)?)")

Resources = Mapping[str, Fraction]


class QuantityError(ValueError):
    """The text is not a quantity; the message says so and gives examples."""


def parse_quantity(value: object) -> Fraction:
    """The exact value of a quantity; raises QuantityError."""
    match = _PATTERN.fullmatch(str(value).strip())
    scale = _SCALES.get(match[3] or "") if match else None
    if match is None or scale is None:
        raise QuantityError(f"{value!r} is no quantity: write 2, 500m, 1.5, 512Mi or 3Gi")
    exponent = Fraction(10) ** int(match[2]) if match[2] else Fraction(1)
    return Fraction(match[1]) * exponent * scale


def format_quantity(value: Fraction) -> str:
    """The shortest plain form: whole numbers as such, others in thousandths (rounded up)."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{-(-value * 1000 // 1)}m"


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """What the scheduler counts for a pod: the containers' sum or the largest init container.

    A limit without a request counts as the request, as the API server's defaulting has it.
    """
    total = _sum(_container_requests(container) for container in spec.get("containers") or ())
    for container in spec.get("initContainers") or ():
        for name, amount in _container_requests(container).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    return _sum([total, _parsed(spec.get("overhead") or {})])


def _container_requests(container: Mapping[str, Any]) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    return _parsed({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _parsed(amounts: Mapping[str, Any]) -> dict[str, Fraction]:
    return {name: parse_quantity(amount) for name, amount in amounts.items()}


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total
