"""The command of an inspector pod: `python -m paddock.agent.inspect PATH ROOT` writes one line to standard output.

The line is `PADDOCK-HEADER` and the JSON of a HeaderAnswer. A fault is an answer too, so the exit code is always 0;
anything else means that the pod itself failed.
"""

import json
import sys
from collections.abc import Sequence
from typing import Final

from paddock.agent.headers import read_header
from paddock.api.report import HeaderAnswer, HeaderFault

PREFIX: Final = "PADDOCK-HEADER "
"""How the line begins, to tell it from whatever else is in the log."""

_ARGUMENTS: Final = 2


def answer_line(arguments: Sequence[str]) -> str:
    """Give the line for the arguments PATH and ROOT."""
    return PREFIX + json.dumps(_answer(arguments).to_dict(), separators=(",", ":"))


def _answer(arguments: Sequence[str]) -> HeaderAnswer:
    if len(arguments) != _ARGUMENTS:
        return _failed("expected the arguments PATH and ROOT")
    try:
        return read_header(arguments[0], [arguments[1]])
    except Exception as error:  # noqa: BLE001 - whatever it is, the operator must hear of it
        return _failed(f"{type(error).__name__}: {error}")


def _failed(message: str) -> HeaderAnswer:
    return HeaderAnswer(fault=HeaderFault(code="InspectionFailed", message=message))


if __name__ == "__main__":
    sys.stdout.write(answer_line(sys.argv[1:]) + "\n")
