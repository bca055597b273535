"""Bytes in words and in Kubernetes quantities."""

import re
from decimal import Decimal

from paddock.api.vocabulary import GRANULE

MIB = 1024 * 1024
_FACTORS = {
    "": Decimal(1),
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
_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(m|[kMGTPE]|[KMGTPE]i))?$")


def parse_quantity(text: str | int) -> Decimal:
    """Give the value of a Kubernetes quantity such as `6Gi`, `500m` or `1e3`; ValueError when it is none."""
    found = _QUANTITY.match(str(text).strip())
    if not found:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    number, exponent, suffix = found.groups()
    return Decimal(number + (exponent or "")) * _FACTORS[suffix or ""]


def mebibytes(value: int) -> str:
    """Give bytes as a quantity in Mi, rounded down."""
    return f"{value // MIB}Mi"


def round_up(value: int, step: int = GRANULE) -> int:
    """Give the smallest multiple of `step` bytes that holds `value` bytes."""
    return -(-value // step) * step


def round_down(value: int, step: int = GRANULE) -> int:
    """Give the largest multiple of `step` bytes that is not above `value` bytes."""
    return value // step * step


def human(value: int) -> str:
    """Give bytes for a sentence: `512 MiB`, `11.8 GiB`; rounded to the nearest tenth."""
    mib = value / MIB
    return f"{mib / 1024:.1f} GiB" if abs(mib) >= 1024 else f"{mib:.0f} MiB"  # noqa: PLR2004 a GiB in MiB
