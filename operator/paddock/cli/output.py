"""Forms of output and the line for problems; apart from the screen, which takes longer to import."""

import sys
from enum import StrEnum


class Output(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def complain(message: str) -> None:
    """Tell what went wrong, in one line on stderr."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
