from fractions import Fraction

import pytest

from octavo_operator.api.quantities import parse_quantity, parse_spec_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("250m", Fraction(1, 4)),
        ("1.5Gi", 1610612736),
        ("2k", 2000),
        ("1M", 10**6),
        ("1Ti", 2**40),
    ],
)
def test_what_a_spec_may_hold(text: str, number: Fraction) -> None:
    assert parse_spec_quantity(text) == parse_quantity(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e9", 10**9),
        ("1.5E-3", Fraction(3, 2000)),
        ("100u", Fraction(1, 10**4)),
        ("7n", Fraction(7, 10**9)),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("-1", -1),
        ("+.5", Fraction(1, 2)),
        ("1.", 1),
    ],
)
def test_what_others_may_write_as_well(text: str, number: Fraction) -> None:
    assert parse_quantity(text) == number
    with pytest.raises(ValueError, match="no quantity"):
        parse_spec_quantity(text)


@pytest.mark.parametrize(
    "text", ["", "1K", "1ki", "1mi", "1 Gi", "1GiB", "Gi", ".", "1e", "1e3k", "1e99999999", "nan"]
)
def test_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        parse_quantity(text)
