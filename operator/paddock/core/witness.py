"""What a card's driver shows of a server, beside what the server says of itself.

The driver is the better witness: it counts memory by process and no image can talk it into anything. But it does not
tell weights from other memory, so both are heard, and each can refute the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paddock.api.report import DeviceProcess, DeviceUse
from paddock.api.vocabulary import GRANULE, Reason
from paddock.core.evidence import Evidence
from paddock.core.quantity import MIB, human
from paddock.core.usage import STEP

CONTEXT: Final = 640 * MIB
"""Bytes that a bare context takes of a card at most: that much on another card than its own refutes nothing."""
_MOST_OVER: Final = 20
"""A twentieth of the reservation, or one granule if that is more, is what a server may have beyond it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The server that is asked about, and where it belongs. Sizes in bytes."""

    pod: str
    """UID."""
    container: str
    """Id, without the runtime's name in front."""
    pci_id: str | None
    """The card that it belongs on; None for the CPU."""
    need: int = 0
    """Reserved there."""
    weights: int = 0
    """Of weights that belong there; 0 when not known."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the driver shows, judged. No evidence: nothing that counts for or against."""

    evidence: Evidence | None = None
    hasty: bool = False
    """A moment later it may look otherwise: what is missing is perhaps only not told yet."""


def held(uses: Sequence[DeviceUse], subject: Subject) -> dict[str, int | None]:
    """Give what the subject's processes have, by card; None for a card where the driver gives no number."""
    out: dict[str, int | None] = {}
    for use in uses:
        mine = [one.bytes for one in use.processes if _is_of(one, subject)]
        if mine:
            sizes = [size for size in mine if size is not None]
            out[use.pci_id] = sum(sizes) if len(sizes) == len(mine) else None
    return out


def _is_of(process: DeviceProcess, subject: Subject) -> bool:
    """Compare containers, so that a former one of the same pod is not taken for it; pods where no container is told."""
    if process.container is not None and subject.container:
        return process.container == subject.container
    return process.pod == subject.pod


def look(uses: Sequence[DeviceUse], subject: Subject, names: Mapping[str, str]) -> Sight:
    """Judge what the driver shows of a server that is up; `names` tells what cards of the node call themselves."""
    there = held(uses, subject)
    elsewhere = {card: size for card, size in there.items() if card != subject.pci_id}
    large = {card: size for card, size in elsewhere.items() if (size or 0) > CONTEXT}
    own = next((use for use in uses if use.pci_id == subject.pci_id), None)
    if own is None:
        return _refuted(Reason.WRONG_DEVICE, large, subject, names) if large else Sight()
    if own.pci_id not in there:
        if elsewhere:
            return _refuted(Reason.WRONG_DEVICE, elsewhere, subject, names)
        return _absent(own, subject, names)
    if large:
        return _refuted(Reason.SECOND_DEVICE, large, subject, names)
    return _on_its_own(there[own.pci_id], subject, names)


def _on_its_own(size: int | None, subject: Subject, names: Mapping[str, str]) -> Sight:
    want = _name(subject.pci_id, names)
    if size is None:
        return Sight(Evidence(True, Reason.PROCESS_ON_DEVICE, "the driver lists its process there"))
    if subject.need and size > limit(subject.need):
        message = f"the driver shows {human(size)} for its process on {want}, {human(subject.need)} are reserved there"
        return Sight(Evidence(False, Reason.OVER_PLAN, message))
    if size + STEP < subject.weights * 9 // 10:
        message = (
            f"the driver shows only {human(size)} for its process on {want}, its weights are {human(subject.weights)}"
        )
        return Sight(Evidence(False, Reason.CPU_FALLBACK, message), hasty=True)
    return Sight(Evidence(True, Reason.PROCESS_ON_DEVICE, f"the driver shows {human(size)} for its process there"))


def limit(need: int) -> int:
    """Give the bytes that a server may have of its card before it counts as a breach of the plan."""
    return need + max(GRANULE, need // _MOST_OVER)


def _absent(own: DeviceUse, subject: Subject, names: Mapping[str, str]) -> Sight:
    """No card lists it. That refutes only where the card has no memory in use that could be the model's.

    Some drivers list no processes, or not all: then the memory in use exceeds what the listed ones have.
    """
    others = sum(one.bytes or 0 for one in own.processes if one.pod is not None or one.command)
    if not own.complete or own.used is None or own.used - others + STEP // 4 >= subject.weights or not subject.weights:
        return Sight(hasty=True)
    want = _name(subject.pci_id, names)
    message = f"the driver shows no process of it on any card; its {human(subject.weights)} of weights belong on {want}"
    return Sight(Evidence(False, Reason.CPU_FALLBACK, message), hasty=True)


def _refuted(reason: Reason, where: Mapping[str, int | None], subject: Subject, names: Mapping[str, str]) -> Sight:
    told = " and ".join(
        (f"{human(size)} on {_name(card, names)}" if size is not None else _name(card, names))
        for card, size in sorted(where.items())
    )
    belongs = _name(subject.pci_id, names) if subject.pci_id else "the CPU"
    return Sight(Evidence(False, reason, f"the driver shows its process with {told}; the model belongs on {belongs}"))


def _name(card: str | None, names: Mapping[str, str]) -> str:
    known = names.get(card) if card is not None else None
    return f"{known} ({card})" if known else str(card)


def combine(log: Evidence, sight: Evidence | None, subject: Subject) -> Evidence:
    """Hear both: the server's log, and the driver if it has anything to say."""
    if sight is None:
        return log
    if not sight.verified:
        said = f", though its log says that {log.message}" if log.verified else f"; {log.message}"
        return replace(sight, message=sight.message + said)
    if log.verified:
        return Evidence(True, Reason.PROCESS_ON_DEVICE, f"{log.message}; {sight.message}")
    if log.reason is Reason.NO_EVIDENCE and subject.weights > STEP:
        return replace(sight, message=f"{sight.message}, and its log says nothing")
    return replace(log, message=f"{log.message}, though {sight.message}")


# --- foreign use ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server of ours belongs."""

    pci_id: str | None
    need: int
    """Bytes reserved there."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What others than our servers in their place have of a card. Bytes."""

    bytes: int
    by_command: tuple[tuple[str, int], ...] = ()
    """The most first."""


def foreign(use: DeviceUse, places: Mapping[str, Place]) -> Foreign:
    """Add up who is on a card and should not count as ours; `places` is by UID of our pods.

    A server of ours on another card than its own is foreign there, and so is what it has beyond its reservation; a pod
    that is gone is nobody's, even while its process still ends.
    """
    sums: dict[str, int] = {}
    ours: dict[str, int] = {}
    for one in use.processes:
        place = places.get(one.pod or "")
        if place is not None and place.pci_id == use.pci_id:
            ours[one.pod or ""] = ours.get(one.pod or "", 0) + (one.bytes or 0)
        else:
            name = one.command or "unknown"
            sums[name] = sums.get(name, 0) + (one.bytes or 0)
    over = sum(max(0, size - places[pod].need) for pod, size in ours.items())
    if over:
        sums["llama-server beyond its reservation"] = over
    ranked = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
    return Foreign(sum(sums.values()), tuple(ranked))
