"""What a container that fetches model files says of itself: how far it is, and why it failed, in our words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from paddock.api.fetched import Failed, FailureClass, Progress
from paddock.api.source import Progress as Shown
from paddock.api.vocabulary import Reason
from paddock.core.quantity import human

FETCH, HOLD = "fetch", "hold"
"""Names of the containers that fetch, and that keep what was fetched."""
REASONS: Final[Mapping[FailureClass, Reason]] = {
    "Unauthorized": Reason.UNAUTHORIZED,
    "NotFound": Reason.MODEL_NOT_FOUND,
    "Untrusted": Reason.UNTRUSTED,
    "OutOfSpace": Reason.OUT_OF_SPACE,
    "Unreachable": Reason.UNREACHABLE,
    "Corrupt": Reason.CORRUPT,
}
TOLD: Final = frozenset({*REASONS.values(), Reason.FETCH_FAILED})
"""Failures that are told by Events."""
LASTING: Final = frozenset({Reason.UNAUTHORIZED, Reason.MODEL_NOT_FOUND, Reason.UNTRUSTED, Reason.CORRUPT})
"""Failures that another try of the same pod does not end: it gives its device back, and is made anew after a pause."""
_PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_LONGEST: Final = 1000
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Where a pod is with its files."""

    reason: Reason
    message: str
    final: bool = False
    """Whether this very pod will not get further."""


def fetch_of(status: Mapping[str, Any]) -> Fetch | None:
    """Give what the status of a server's pod says of its files; None when there is nothing left to fetch."""
    own = {one["name"]: one for one in status.get("initContainerStatuses") or ()}
    beside = {one["name"]: one for one in status.get("containerStatuses") or ()}
    keeper = beside.get(HOLD) or own.get(HOLD) or {}  # servers of older operators have it among the initial ones
    one = own.get(FETCH)
    if one is None:
        return _keeper(keeper)
    state = one.get("state") or {}
    if "running" in state:
        return Fetch(Reason.FETCHING, "its files are fetched")
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _PULLING:
        return Fetch(Reason.IMAGE_PULL_FAILED, waiting.get("message", waiting["reason"]))
    ended = state.get("terminated") or (one.get("lastState") or {}).get("terminated") or {}
    if ended and ended.get("exitCode") != 0:
        return _failed(ended, one.get("restartCount", 0))
    return _keeper(keeper)


def _keeper(one: Mapping[str, Any]) -> Fetch | None:
    """Give why the server gets no traffic for the want of the container that keeps its files."""
    state = one.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _PULLING:
        return Fetch(Reason.IMAGE_PULL_FAILED, waiting.get("message", waiting["reason"]))
    ended = state.get("terminated") or (one.get("lastState") or {}).get("terminated") or {}
    return None if one.get("started") or "running" in state or not ended else _failed(ended, one.get("restartCount", 0))


def _failed(ended: Mapping[str, Any], restarts: int) -> Fetch:
    again = f" (tried {restarts + 1} times)" if restarts else ""
    said = failure_in(ended.get("message", ""))
    if said is not None:
        reason = REASONS[said.failure]
        return Fetch(reason, said.message[:_LONGEST] + again, final=reason in LASTING and not said.retry)
    if ended.get("reason") == "OOMKilled":
        return Fetch(Reason.FETCH_FAILED, f"the container was ended for exceeding its memory limit{again}")
    last = ended.get("message", "").strip().rpartition("\n")[2][-300:]
    words = f": {last}" if last else ""
    return Fetch(Reason.FETCH_FAILED, f"it exited with code {ended.get('exitCode')}{again}{words}")


def failure_in(text: str) -> Failed | None:
    """Give the last failure that a log tells of."""
    return _last(text, Failed)


def progress_in(text: str) -> Progress | None:
    """Give the last progress that a log tells of."""
    return _last(text, Progress)


def _last(text: str, model: type[T]) -> T | None:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return model.model_validate_json(line)
            except ValidationError:
                continue
    return None


def shown(progress: Progress) -> Shown:
    """Put progress as the status has it."""
    percent = min(99, int(progress.percent)) if progress.bytes < progress.total else 100
    speed = f", {human(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    return Shown(text=f"{percent}%{speed}", percent=percent, bytes_per_second=progress.bytes_per_second or None)
