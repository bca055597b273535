"""Progress for the person who waits."""

import sys
import time


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")  # one write: lines of two threads stay whole
    sys.stderr.flush()
