"""What llama-server's /metrics tells of its work: counters, and tokens a second between two looks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 15.0
"""Seconds over which a rate is taken: a server counts the tokens of an answer when that is done."""
_LINE = re.compile(r"^llamacpp:([a-z_]+)(?:\{[^}]*\})?\s+([0-9.eE+-]+|NaN)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counters:
    """One look at one server."""

    answered: float = 0.0
    """Tokens of answers, since its start."""
    read: float = 0.0
    """Tokens of prompts, since its start."""
    working: int = 0
    """Requests that it works on."""
    waiting: int = 0
    """Requests that wait for a slot."""


def counters(text: str) -> Counters | None:
    """Read the answer of /metrics; None for text that is none."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            found[name] = float(value)
        except ValueError:
            continue
    if "tokens_predicted_total" not in found:
        return None
    return Counters(
        found["tokens_predicted_total"],
        found.get("prompt_tokens_total", 0.0),
        int(found.get("requests_processing", 0)),
        int(found.get("requests_deferred", 0)),
    )


@dataclass(frozen=True, slots=True)
class Look:
    """Counters and when they were read, in seconds of any clock that only goes forward."""

    at: float
    counters: Counters


def keep(looks: Iterable[Look], new: Look) -> tuple[Look, ...]:
    """Add a look and drop those that are too old; after a restart of the server only the new one is left."""
    kept = [one for one in looks if new.at - one.at <= WINDOW]
    if kept and kept[-1].counters.answered > new.counters.answered:
        kept = []
    return (*kept, new)


def rate(looks: Sequence[Look]) -> float | None:
    """Give tokens of answers a second; None before there are two looks."""
    if len(looks) < 2 or looks[-1].at <= looks[0].at:  # noqa: PLR2004 two
        return None
    return (looks[-1].counters.answered - looks[0].counters.answered) / (looks[-1].at - looks[0].at)
