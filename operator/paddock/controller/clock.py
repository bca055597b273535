"""The time of day."""

from datetime import UTC, datetime


def now() -> str:
    """Give the time in RFC 3339, in seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
