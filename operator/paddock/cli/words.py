"""Small words for tables: ages, sizes, device names; nothing that a terminal could take for a command."""

import re
from datetime import UTC, datetime

from paddock.core.quantity import human, parse_quantity

MINUTE, HOUR, DAY = 60, 3600, 86400
NOTHING = "-"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_MAKERS = re.compile(r"^(NVIDIA|AMD|Intel\(R\)|Intel|Apple|Moore Threads)\s+(?=\S)", re.IGNORECASE)
_NOISE = re.compile(r"\s*\((?:R|TM|C)\)|\s+\([^()]*\)\s*$| GPU$", re.IGNORECASE)


def clean(text: object) -> str:
    """Give text without control characters and tabs: device names and logs come from elsewhere."""
    return _CONTROL.sub(" ", str(text)).strip()


def age(since: str | None, now: datetime) -> str:
    """Give the time since an RFC 3339 time as kubectl does: 45s, 12m, 5h, 3d."""
    moment = moment_of(since)
    if moment is None:
        return NOTHING
    seconds = max(0, int((now - moment).total_seconds()))
    for length, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if seconds >= 2 * length or (seconds >= length and unit != "m"):
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def moment_of(text: str | None) -> datetime | None:
    """Read an RFC 3339 time; None when there is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def size_of(quantity: str | None) -> int | None:
    """Give the bytes of a quantity; None when it is absent or no quantity."""
    try:
        return int(parse_quantity(quantity)) if quantity else None
    except ValueError:
        return None


def size(value: int | None) -> str:
    """Give bytes in words, or a dash."""
    return NOTHING if value is None else human(value)


def model_of(description: str) -> str:
    """Give the part of a device's description that tells it from others: no maker, no trademarks, no code name."""
    text = _NOISE.sub("", _NOISE.sub("", _MAKERS.sub("", clean(description))))
    return text.strip() or clean(description)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Give a count with its noun."""
    return f"{count} {one if count == 1 else many or one + 's'}"
