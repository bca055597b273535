"""Where a card is plugged in: its PCIe link, its NUMA node, what it is isolated from, and its peers. Facts, no more."""

from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import ATOMIC

Path = Literal["SameBoard", "OneSwitch", "Switches", "HostBridge", "NumaNode", "System"]
"""The way between two cards, the shortest first, as NVML tells it: through at most one PCIe switch, through several,
through the processor's host bridge, within one NUMA node, between two."""


class Pcie(Model):
    """The PCIe link of a card. Cards lower it while idle, so what counts is the best that was seen."""

    generation: int | None = None
    """Best generation that the link was seen to run at."""
    max_generation: int | None = None
    """Best that card and slot can."""
    width: int | None = None
    """Most lanes that the link was seen to run with."""
    max_width: int | None = None
    """Most that card and slot can."""


class Peer(Model):
    """Another card of the node."""

    pci_id: str
    """Its PCI address."""
    path: Path | None = None
    """The way there: SameBoard, OneSwitch, Switches, HostBridge, NumaNode or System."""
    direct: bool | None = None
    """Whether the driver lets one read the other's memory directly."""
    nvlink: bool | None = None
    """Whether that goes by NVLink."""


class Bus(Model):
    """Where a card is plugged in; nothing is decided by it yet."""

    pcie: Pcie | None = None
    """Its PCIe link."""
    numa_node: int | None = None
    """NUMA node that it is attached to; absent where there is one only."""
    iommu_group: int | None = None
    """IOMMU group; absent without an IOMMU at work."""
    iommu_shared: Annotated[list[str], Field(json_schema_extra=ATOMIC)] = []
    """Other devices of its group, by PCI address, functions of the card itself left out: nothing (no ACS on the way)
    keeps their direct memory access apart from the card's. At most 16."""
    peers: Annotated[list[Peer], Field(json_schema_extra=ATOMIC)] = []
    """Other cards of the node, as far as their driver tells of the way."""
