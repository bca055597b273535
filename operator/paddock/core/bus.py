"""From the texts of sysfs and the answers of NVML to where a card is plugged in, without I/O."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paddock.api.bus import Bus, Pcie, Peer

_SPEEDS: Final[Mapping[str, int]] = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""PCIe generation by gigatransfers per second, as the kernel writes them."""
_SPEED: Final = re.compile(r"([0-9.]+) GT/s")
_MOST_SHARED: Final = 16
"""Devices of a group that are named: without ACS a group may be the whole machine."""


def slot_of(files: Mapping[str, str], group: int | None = None, others: Sequence[str] = (), own: str = "") -> Bus:
    """Read the files of a folder of /sys/bus/pci/devices; `others` are the devices of its IOMMU group."""
    pcie = Pcie(
        generation=_generation(files.get("current_link_speed", "")),
        max_generation=_generation(files.get("max_link_speed", "")),
        width=_count(files.get("current_link_width", "")),
        max_width=_count(files.get("max_link_width", "")),
    )
    board = own.rpartition(".")[0]
    shared = sorted(one for one in others if one.rpartition(".")[0] != board)
    node = files.get("numa_node", "").strip()
    return Bus(
        pcie=pcie if pcie != Pcie() else None,
        numa_node=int(node) if node.isdecimal() else None,
        iommu_group=group,
        iommu_shared=shared[:_MOST_SHARED],
    )


def _generation(speed: str) -> int | None:
    found = _SPEED.match(speed.strip())
    return _SPEEDS.get(found.group(1)) if found else None


def _count(text: str) -> int | None:
    """Read a number of lanes; the kernel writes 0 or 255 where the link is down."""
    value = text.strip()
    return int(value) if value.isdecimal() and 0 < int(value) <= 32 else None  # noqa: PLR2004 lanes


def from_driver(link: Mapping[str, Any] | None, peers: Sequence[Mapping[str, Any]]) -> Bus:
    """Take over what NVML answered of one card."""
    pcie = Pcie.model_validate(link) if link else Pcie()
    return Bus(pcie=pcie if pcie != Pcie() else None, peers=[Peer.model_validate(one) for one in peers])


def join(slot: Bus | None, driver: Bus | None) -> Bus | None:
    """Put both together; the driver's word goes first where both have one."""
    if slot is None or driver is None:
        return slot or driver
    return slot.model_copy(update={"pcie": _link(slot.pcie, driver.pcie), "peers": driver.peers or slot.peers})


def _link(slot: Pcie | None, driver: Pcie | None) -> Pcie | None:
    if slot is None or driver is None:
        return slot or driver
    told = {name: value for name, value in driver if value is not None}
    return slot.model_copy(update=told)


def settle(before: Bus | None, now: Bus | None) -> Bus | None:
    """Keep the best link that was seen, and everything that a look without it does not tell."""
    if before is None or now is None:
        return now or before
    was, is_ = before.pcie, now.pcie
    if was is not None and is_ is not None:
        is_ = is_.model_copy(
            update={
                "generation": max(was.generation or 0, is_.generation or 0) or None,
                "width": max(was.width or 0, is_.width or 0) or None,
            }
        )
    return now.model_copy(update={"pcie": is_ or was, "peers": now.peers or before.peers})
