"""What is wrong with a device beside not being listed, and what its GPU object says of it."""

from collections.abc import Mapping
from typing import Final

from paddock.api.gpu import ForeignUse, GPUSpec, GPUStatus
from paddock.api.modeldeployment import Condition
from paddock.api.report import DeviceTrouble, NodeReport
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.inventory import not_ready
from paddock.core.quantity import mebibytes, round_up
from paddock.core.witness import Foreign, Place, foreign

MOST_NAMED: Final = 8
"""Programs that a GPU object names."""
_REASONS: Final[Mapping[str, Reason]] = {
    "Lost": Reason.DEVICE_LOST,
    "Unreadable": Reason.DEVICE_UNHEALTHY,
    "Xid": Reason.DEVICE_UNHEALTHY,
    "EccError": Reason.DEVICE_UNHEALTHY,
    "NeedsReset": Reason.DEVICE_UNHEALTHY,
}
BROKEN: Final = frozenset({Reason.DEVICE_LOST, Reason.DEVICE_UNHEALTHY, Reason.NOT_LISTED})
"""Reasons for which a server that has ended on a device is made anew elsewhere."""


def ready_of(status: GPUStatus) -> Condition | None:
    """Give a GPU's condition Ready."""
    return next((one for one in status.conditions if one.type == ConditionType.READY), None)


def dress(status: GPUStatus, report: NodeReport, places: Mapping[str, Place], now: str) -> GPUStatus:
    """Add what the drivers tell of one device: foreign use, the boot, and what is wrong with it."""
    use = next((one for one in report.uses or () if one.pci_id == status.pci_id), None)
    update: dict[str, object] = {"boot_id": report.boot_id}
    if use is not None and use.complete:
        found = foreign(use, places)
        update["memory"] = status.memory.model_copy(update={"foreign": _whole(found.bytes)})
        update["foreign_use"] = _named(found)
    dressed = status.model_copy(update=update)
    wrong = trouble_of(status.pci_id, report)
    ready = ready_of(status)
    if wrong is None or (ready is not None and ready.status != "True"):
        return dressed
    return not_ready(dressed, wrong[0], wrong[1], now)


def _whole(size: int) -> str:
    return mebibytes(round_up(size))


def _named(found: Foreign) -> list[ForeignUse]:
    return [ForeignUse(command=command, memory=_whole(size)) for command, size in found.by_command[:MOST_NAMED] if size]


def trouble_of(pci_id: str | None, report: NodeReport) -> tuple[Reason, str] | None:
    """Give reason and message of what is wrong with a card; None when it is sound."""
    found: DeviceTrouble | None = next((one for one in report.troubles if one.pci_id == pci_id), None)
    return (_REASONS[found.code], found.message) if found is not None else None


def withheld(status: GPUStatus, spec: GPUSpec, doubt: str | None, stored: GPUStatus | None, now: str) -> GPUStatus:
    """Give the status of a device that is in order and yet gets nothing new: by its owner's word, or by our doubt."""
    ready = ready_of(status)
    if ready is None or ready.status != "True" or not (spec.quarantine or doubt):
        return status
    before = ready_of(stored) if stored is not None else None
    since = before.last_transition_time if before is not None and before.status == "False" else now
    if spec.quarantine:
        return not_ready(
            status, Reason.QUARANTINED, "spec.quarantine is true: what runs here stays, nothing new comes", since
        )
    return not_ready(status, Reason.REPEATED_MISMATCH, doubt or "", since)
