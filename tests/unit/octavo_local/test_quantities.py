"""Quantities mean what Kubernetes says they mean."""

from fractions import Fraction

import pytest

from octavo_local.quantities import (
    QuantityError,
    format_quantity,
    parse_quantity,
    pod_requests,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", Fraction(2)),
        (3, Fraction(3)),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        ("3Gi", Fraction(3 * 2**30)),
        ("1k", Fraction(1000)),
        ("1e3", Fraction(1000)),
        ("12E", Fraction(12 * 10**18)),
        ("100u", Fraction(1, 10000)),
    ],
)
def test_a_quantity_is_read_exactly(text: object, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "two", "1 GB", "1gi", "Gi", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="no quantity"):
        parse_quantity(text)


def test_thousandths_are_rounded_up_when_written() -> None:
    assert format_quantity(Fraction(3)) == "3"
    assert format_quantity(Fraction(1, 3)) == "334m"


def test_a_pod_asks_for_its_containers_together_or_its_largest_init_container() -> None:
    def container(cpu: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}}

    spec = {
        "containers": [container("500m"), container("1")],
        "initContainers": [container("1"), container("2")],
    }
    assert pod_requests(spec) == {"cpu": 2}


def test_a_limit_without_a_request_counts_as_one() -> None:
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    assert pod_requests(spec) == {"nvidia.com/gpu": 1}
