"""The fleet: an immutable snapshot of nodes, devices and what is reserved on them.

Built by the operator from Node and GPU objects; read by `placement`. Never changed in place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from paddock.api.gpu import DeviceType, GPUStatus
from paddock.api.modeldeployment import Toleration
from paddock.api.vocabulary import ConditionType
from paddock.core.quantity import parse_quantity


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def tolerated_by(self, tolerations: Iterable[Toleration]) -> bool:
        """Tell whether one of the tolerations covers it, by the rules of Kubernetes."""
        return any(self._covered(one) for one in tolerations)

    def _covered(self, one: Toleration) -> bool:
        if one.effect is not None and one.effect != self.effect:
            return False
        if not one.key:
            return one.operator == "Exists"
        if one.key != self.key:
            return False
        return one.operator == "Exists" or (one.value or "") == self.value


@dataclass(frozen=True, slots=True)
class Node:
    """A node as far as placement needs it."""

    name: str
    ready: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    architecture: str = "amd64"


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory reserved on a device for one pod."""

    pod: str
    """namespace/name."""
    deployment: str
    """namespace/name."""
    bytes: int
    resident: bool = False
    """Whether the driver's free memory already shows it: the pod is Ready."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device and what is reserved on it. Sizes in bytes."""

    gpu: str
    """Name of its GPU object."""
    node: str
    name: str
    """ggml's name on the node."""
    backend: str
    type: DeviceType
    description: str = ""
    uuid: str | None = None
    pci_id: str | None = None
    index: int | None = None
    raw_index: int | None = None
    total: int | None = None
    free: int | None = None
    driver: str | None = None
    bandwidth: int | None = None
    """Peak bytes per second of its memory; None when unknown."""
    compute_capability: str | None = None
    ready: bool = True
    why_not: str = ""
    """When not ready: the message of its Ready condition."""
    ambiguous: bool = False
    claims: tuple[Claim, ...] = ()

    @property
    def pinnable(self) -> bool:
        """Whether a pod can be given this device alone: by an identifier, or a position that its runtime knows."""
        if self.backend == "CUDA":
            return self.uuid is not None
        if self.backend in ("ROCm", "MUSA"):
            return self.uuid is not None or self.raw_index is not None
        return self.backend in ("Vulkan", "SYCL") and self.raw_index is not None

    @property
    def reserved(self) -> int:
        """Bytes reserved in all."""
        return sum(claim.bytes for claim in self.claims)

    def capacity(self, reserve: int) -> int:
        """Bytes that models may have on it when it is empty."""
        return max(0, (self.total or 0) - reserve)

    def available(self, reserve: int) -> int:
        """Bytes that one more model may have: the smaller of ledger and observation, never below 0.

        The first term guards against our own claims that are still on their way, the second against strangers.
        """
        ledger = self.capacity(reserve) - self.reserved
        if self.free is None:
            return max(0, ledger)
        pending = sum(claim.bytes for claim in self.claims if not claim.resident)
        return max(0, min(ledger, self.free - pending - reserve))

    def with_claims(self, claims: Iterable[Claim]) -> "Device":
        """Give the same device with other claims."""
        return replace(self, claims=tuple(claims))

    def without(self, pods: frozenset[str]) -> "Device":
        """Give the same device as if these pods (namespace/name) were gone.

        What the driver shows as used by them counts as free again: a claim, or less if that is all that is in use.
        """
        going = [claim for claim in self.claims if claim.pod in pods]
        if not going:
            return self
        free = self.free
        if free is not None:
            free += sum(claim.bytes for claim in going if claim.resident)
            free = min(free, self.total) if self.total is not None else free
        return replace(self, free=free, claims=tuple(claim for claim in self.claims if claim.pod not in pods))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every node and device. Devices are in the order of their GPU object's name."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    reserve: int = 0
    """Bytes kept free on each device."""

    def without(self, pods: Iterable[str]) -> "Fleet":
        """Give the fleet as if these pods (namespace/name) had returned what they hold."""
        gone = frozenset(pods)
        return replace(self, devices=tuple(device.without(gone) for device in self.devices))


def device_of(gpu: str, status: GPUStatus, resident: frozenset[str] | set[str] = frozenset()) -> Device:
    """Turn a GPU object's status into a device; `resident` holds the pods (namespace/name) that are Ready."""
    ready = next((one for one in status.conditions if one.type == ConditionType.READY), None)
    memory = status.memory
    return Device(
        gpu=gpu,
        node=status.node,
        name=status.name,
        backend=status.backends[0] if status.backends else "",
        type=status.type,
        description=status.description,
        uuid=status.uuid,
        pci_id=status.pci_id,
        index=status.index,
        raw_index=status.raw_index,
        total=int(parse_quantity(memory.total)) if memory.total else None,
        free=int(parse_quantity(memory.free)) if memory.free else None,
        driver=status.driver,
        bandwidth=status.memory_bandwidth,
        compute_capability=status.compute_capability,
        ready=ready is not None and ready.status == "True",
        why_not=ready.message if ready is not None else "no report yet",
        ambiguous=bool(status.ambiguous),
        claims=tuple(
            Claim(one.pod, one.deployment, one.bytes, resident=one.pod in resident) for one in status.reservations
        ),
    )
