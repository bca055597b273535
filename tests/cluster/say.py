"""Progress for the person who waits."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)  # noqa: T201 - this is a command-line tool
