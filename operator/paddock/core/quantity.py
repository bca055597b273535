"""Bytes in words and in Kubernetes quantities."""

import re
from decimal import Decimal, InvalidOperation

from paddock.api.vocabulary import GRANULE

MIB = 1024 * 1024
_GIB = 1024 * MIB
UNLIMITED = 2**62
"""Bytes that stand for no limit at all."""
_FACTORS = {
    "": Decimal(1),
    "n": Decimal("0.000000001"),
    "u": Decimal("0.000001"),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$", re.ASCII)
_LARGEST = Decimal(2**63 - 1)
"""Kubernetes caps larger quantities to this."""
_SMALLEST = -1000
"""Exponent below which nothing of a number is left, however many digits it has."""


def parse_quantity(text: str | int) -> Decimal:
    """Give the value of a Kubernetes quantity such as `6Gi`, `500m` or `1e3`; ValueError when it is none."""
    found = _QUANTITY.match(str(text).strip())
    if not found:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    number, exponent, suffix = found.groups()
    if exponent and int(exponent[1:]) > 18:  # noqa: PLR2004 more digits than a quantity has
        return _LARGEST.copy_sign(Decimal(number)) if Decimal(number) else Decimal(0)
    if exponent and int(exponent[1:]) < _SMALLEST:
        return Decimal(0)
    try:
        value = Decimal(number + (exponent or "")) * _FACTORS[suffix or ""]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a Kubernetes quantity") from error
    return max(-_LARGEST, min(_LARGEST, value))


def mebibytes(value: int) -> str:
    """Give bytes as a quantity in Mi, rounded down."""
    return f"{value // MIB}Mi"


def round_up(value: int, step: int = GRANULE) -> int:
    """Give the smallest multiple of `step` bytes that holds `value` bytes."""
    return -(-value // step) * step


def round_down(value: int, step: int = GRANULE) -> int:
    """Give the largest multiple of `step` bytes that is not above `value` bytes."""
    return value // step * step


def human(value: int, *, up: bool = False) -> str:
    """Give bytes for a sentence: `512 MiB`, `11.75 GiB`, `12 GiB`.

    Rounded down to a hundredth, which shows every multiple of 256 MiB exactly: what is left never reads as enough for
    a need that is larger. `up` rounds up, for what is missing.
    """
    if value >= UNLIMITED // 2:
        return "no limit"
    if value >= _GIB:
        hundredths = -(-value * 100 // _GIB) if up else value * 100 // _GIB
        return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + " GiB"
    return f"{-(-value // MIB) if up else value // MIB} MiB"


def seconds_of(text: str) -> int:
    """Give the seconds of a duration such as `1h30m`."""
    total, number = 0, ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            total += int(number) * {"s": 1, "m": 60, "h": 3600}[character]
            number = ""
    return total
