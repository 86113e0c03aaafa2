"""Kubernetes quantities ("512Mi", "1.5", "250m", "1e9") as exact numbers."""

import re
from fractions import Fraction
from typing import Final

_SCALES: Final = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000**n) for n, unit in enumerate("mun", 1)},
    **{unit: Fraction(1000**n) for n, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**n) for n, unit in enumerate("KMGTPE", 1)},
}
# An exponent has three digits at most, so that no text makes a number of a million digits.
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)"
)
# What may stand in a spec: the CRD's pattern.
SPEC_QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTP]|[KMGTP]i)?$"


def parse_quantity(text: str) -> Fraction:
    """Any quantity that the API may hold; raises ValueError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, unit = match.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0) * _SCALES[unit or ""]


def parse_spec_quantity(text: str) -> Fraction:
    """A quantity as a user may write it into a spec: no sign, no exponent; raises ValueError."""
    if re.fullmatch(SPEC_QUANTITY, text) is None:
        raise ValueError(f"{text!r} is no quantity")
    return parse_quantity(text)
