"""GPU: one physical device of the fleet, as its node's agent reports it, and what is reserved on it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paddock.api.base import Model
from paddock.api.binding import Binder, DevicePlugin
from paddock.api.bus import Bus
from paddock.api.disruption import Promise
from paddock.api.modeldeployment import Condition
from paddock.api.selector import ATOMIC, Labels, like

QUANTITY = r"[0-9]+([.][0-9]+)?([KMGT]i?|k)?"
SIZE_PATTERN = f"^{QUANTITY}$"
BUDGET_PATTERN = f"^(Auto|Unlimited|{QUANTITY})$"


class DeviceType(StrEnum):
    """Kind of device."""

    DISCRETE = "Discrete"
    INTEGRATED = "Integrated"
    REMOTE = "Remote"


class GPUSpec(Model):
    """What the owner of the fleet says about the device. The operator reads it and never writes it."""

    budget: Annotated[
        str,
        Field(
            max_length=20,
            pattern=BUDGET_PATTERN,
            json_schema_extra=like(BUDGET_PATTERN, "budget is Auto, Unlimited, or a quantity like 20Gi"),
        ),
    ] = "Auto"
    """Memory that models may have on it together: Auto (what is free, less the reserve), a quantity (at most so much of
    it), or Unlimited (no figure of its memory is held against a model; whoever says so answers for it). What already
    runs stays."""
    reserve: (
        Annotated[
            str,
            Field(
                max_length=20,
                pattern=SIZE_PATTERN,
                json_schema_extra=like(SIZE_PATTERN, "reserve is a quantity like 512Mi"),
            ),
        ]
        | None
    ) = None
    """Memory kept free on it, in place of the operator's setting server.reserve."""
    labels: Labels = {}
    """Labels by which selectors find it."""
    quarantine: bool = False
    """True: nothing new is placed on it. What runs there stays and is not drained."""
    binder: Binder | None = None
    """How pods get it; absent: what its node has decides. docs/binding.md explains each. What runs stays."""


class Memory(Model):
    """Memory of a device, as Kubernetes quantities in Mi."""

    total: str | None = None
    """All of it; absent when the driver does not say."""
    free: str | None = None
    """What nobody uses now, rounded down to 256Mi."""
    reserved: str = "0Mi"
    """What Paddock has reserved on it."""
    foreign: str | None = None
    """What processes have that are none of Paddock's servers in their place, rounded up to 256Mi; absent when the
    node's agent does not see processes."""


class Reservation(Model):
    """Memory set aside for one pod before it is made, until it is gone."""

    pod: str
    """namespace/name of the Pod."""
    deployment: str
    """namespace/name of the ModelDeployment."""
    uid: str
    """UID of the ModelDeployment."""
    bytes: int
    """Bytes, a multiple of 256 MiB."""
    host_bytes: int | None = None
    """Bytes of host memory beside it, on the device's node."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it was made."""


class Learned(Model):
    """What servers took on the device beyond what was estimated, by backend and build: the most that was seen."""

    backend: Annotated[str, Field(max_length=63)]
    """ggml backend."""
    build: Annotated[str, Field(max_length=128)]
    """llama.cpp's build, or the image's tag."""
    buffers_bytes: int = 0
    """What the buffers in a server's log were above the estimated ones."""
    process_bytes: int | None = None
    """What a server's process had beyond its estimated buffers, by the driver; absent until that was seen."""


class ForeignUse(Model):
    """Programs of one name that use the device and are none of Paddock's servers in their place."""

    command: str
    """Their name in the kernel's process list."""
    memory: str
    """What they have together, rounded up to 256Mi."""


class Apart(Model):
    """A deployment that gets nothing here for a while, because its server was found elsewhere."""

    deployment: str = ""
    """namespace/name of the ModelDeployment; empty: nobody gets anything, since it happened again and again."""
    until: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it is tried again."""
    failures: int = 1
    """How often it happened: each time the pause is twice as long."""
    reason: str = ""
    """Reason of what was found."""
    message: str = ""
    """What was found, in a sentence."""


class Alias(Model):
    """Another name of the same physical device: another backend that sees it too."""

    backend: str
    """ggml backend."""
    name: str
    """ggml's name."""


class GPUStatus(Model):
    """What is known about the device; written by the operator alone."""

    node: str
    """Its node."""
    index: int | None = None
    """Position in the node's offload list; absent when llama.cpp would not list it."""
    uuid: str | None = None
    """The driver's identifier."""
    pci_id: str | None = None
    """PCI address."""
    name: str
    """ggml's name on the node, for example CUDA1. Valid on that node with that library; never passed to a pod."""
    description: str = ""
    """What the device calls itself."""
    backends: Annotated[list[str], Field(json_schema_extra=ATOMIC)] = []
    """ggml backends that see it, the one used first."""
    aliases: Annotated[list[Alias], Field(json_schema_extra=ATOMIC)] = []
    """Its names in the other backends."""
    raw_index: int | None = None
    """Position among all devices of its backend, before llama.cpp removes duplicates."""
    type: DeviceType
    """Discrete, Integrated or Remote."""
    ambiguous: bool | None = None
    """True when another device of the node looks alike and neither has an identifier."""
    memory: Memory = Memory()
    """Its memory."""
    foreign_use: Annotated[list[ForeignUse], Field(json_schema_extra=ATOMIC)] = []
    """Who has the foreign memory, the most first; at most 8."""
    boot_id: str | None = None
    """Of its node; another one after each boot."""
    compute_capability: str | None = None
    """CUDA compute capability, for example 8.9."""
    driver: str | None = None
    """Driver version."""
    memory_bandwidth: int | None = None
    """Peak bytes per second of its memory, from bus width and clock."""
    plugin: DevicePlugin | None = None
    """How the node agent's device plugin gives it out; absent without one."""
    bus: Bus | None = None
    """Where it is plugged in: PCIe link, NUMA node, IOMMU group, peers."""
    learned: Annotated[list[Learned], Field(json_schema_extra=ATOMIC)] = []
    """What servers took here beyond the estimate: the next ones are planned with it. The last 8 builds at most."""
    reservations: Annotated[
        list[Reservation],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]}),
    ] = []
    """What is reserved on it, and for whom."""
    promises: Annotated[
        list[Promise],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]}),
    ] = []
    """What is promised of it, to pods that wait until others have left."""
    apart: Annotated[list[Apart], Field(json_schema_extra=ATOMIC)] = []
    """Who gets nothing here for a while because a server was found elsewhere; kept here to outlive the operator."""
    mismatches: Annotated[
        list[Annotated[str, Field(json_schema_extra={"format": "date-time"})]], Field(json_schema_extra=ATOMIC)
    ] = []
    """When servers were found elsewhere lately, eight at most: with three, nobody gets anything here for a while."""
    last_disruption: Promise | None = None
    """The last promise for which somebody was asked to leave it, whether it was kept or not."""
    deployments: Annotated[list[str], Field(json_schema_extra=ATOMIC)] = []
    """ModelDeployments on it, as namespace/name."""
    used_by: str | None = None
    """The same in words, for a column: the first three, and how many more."""
    conditions: Annotated[
        list[Condition],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = []
    """Ready."""
