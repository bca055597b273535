"""Quantities as Kubernetes reads them, and sizes as people read them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.core.quantity import MIB, human, mebibytes, parse_quantity, round_down, round_up

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (2, 2),
        ("500m", Decimal("0.5")),
        ("250u", Decimal("0.00025")),
        ("5n", Decimal("0.000000005")),
        ("1.5Gi", 3 * 2**29),
        (".5k", 500),
        ("2.", 2),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12E-1", Decimal("1.2")),
        ("-1Ki", -1024),
        ("+6144Mi", 6144 * MIB),
        (" 1Gi ", GIB),
    ],
)
def test_quantities_have_the_value_that_kubernetes_gives_them(text: str | int, value: Decimal) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "8 GB", "1GiB", "1ki", "Gi", "1e", "0x10", "1..5", "٣", "NaN", "Infinity", "--1"])
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1e999999999999999999999", "9" * 40 + "Ei", "1e19", "9000E"])
def test_an_absurd_quantity_is_capped_as_kubernetes_does(text: str) -> None:
    assert parse_quantity(text) == 2**63 - 1
    assert parse_quantity(f"-{text}") == -(2**63 - 1)


@pytest.mark.parametrize("text", ["1e-99999999999999999999", "9" * 60 + "e-1001", ".1n"])
def test_of_an_absurdly_small_quantity_nothing_is_left(text: str) -> None:
    assert int(parse_quantity(text)) == 0


@given(st.integers(0, 2**62))
def test_rounding_brackets_the_value_within_one_step(value: int) -> None:
    down, up = round_down(value), round_up(value)
    assert down <= value <= up
    assert up - down in (0, 256 * MIB)
    assert down % (256 * MIB) == up % (256 * MIB) == 0


@given(st.integers(0, 2**45))
def test_mebibytes_read_back_are_never_more(value: int) -> None:
    assert 0 <= value - parse_quantity(mebibytes(value)) < MIB


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [
        (0, "0 MiB", "0 MiB"),
        (1, "0 MiB", "1 MiB"),
        (256 * MIB, "256 MiB", "256 MiB"),
        (GIB - 1, "1023 MiB", "1024 MiB"),
        (GIB, "1 GiB", "1 GiB"),
        (5 * GIB + GIB // 4, "5.25 GiB", "5.25 GiB"),
        (12282 * MIB, "11.99 GiB", "12 GiB"),
        (100 * GIB, "100 GiB", "100 GiB"),
    ],
)
def test_sizes_in_sentences(value: int, down: str, up: str) -> None:
    assert human(value) == down
    assert human(value, up=True) == up


@given(st.integers(1, 400), st.integers(0, 100 * GIB))
def test_what_is_left_never_reads_as_enough_when_it_is_not(steps: int, left: int) -> None:
    need = steps * 256 * MIB

    def number(text: str) -> Decimal:
        size, unit = text.split()
        return Decimal(size) * (1024 if unit == "GiB" else 1)

    if left < need:
        assert number(human(left)) < number(human(need))
        assert number(human(need - left, up=True)) > 0
    else:
        assert number(human(left)) >= number(human(need))
