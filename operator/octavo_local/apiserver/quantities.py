"""Quantities of Kubernetes (`500m`, `2`, `1.5Gi`) as exact numbers."""

import re
from fractions import Fraction

_QUANTITY = re.compile(r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?P<suffix>\w*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(value: str | int | float) -> Fraction:
    """The exact value; raises ValueError for what is no quantity."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is no quantity, such as 500m, 2 or 1.5Gi")
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix]
    raise ValueError(f"{value!r} has the unknown unit {suffix!r}")
