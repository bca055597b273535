"""The fleet: an immutable snapshot of nodes, devices and what is reserved on them.

Built by the operator from Node and GPU objects; read by `placement`. Never changed in place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from paddock.api.binding import Binder, DevicePlugin
from paddock.api.gpu import DeviceType, GPUSpec, GPUStatus
from paddock.api.modeldeployment import Toleration
from paddock.api.vocabulary import GRANULE, ConditionType, Label
from paddock.core.dra import SliceDevice
from paddock.core.index import Index, positions
from paddock.core.overhead import more_than_planned
from paddock.core.quantity import UNLIMITED, parse_quantity

AUTO, NO_LIMIT = "Auto", "Unlimited"
"""Words for a budget, beside a quantity."""


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


DEPLOYED = "nvidia.com/gpu.deploy.device-plugin"
"""Label of a node by which GPU Operator runs NVIDIA's device plugin there, or keeps it off."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as far as placement needs it."""

    name: str
    ready: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    architecture: str = "amd64"
    memory: int | None = None
    """Bytes of host memory that the kubelet gives to pods."""
    budget: str | None = None
    """The node's own word on the host memory that models may have; None for the fleet's."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources of others than Paddock that it can give, and how many."""
    granules: Mapping[str, int] = field(default_factory=dict)
    """Memory of its GPUs that its status counts (`counting`): granules that it can give, by resource."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """The same as they were written, before the kubelet has taken them over."""

    @property
    def shares(self) -> tuple[str | None, str | None, frozenset[tuple[str, bool]]]:
        """What decides whether its GPUs may be given out beside its vendor's plugin."""
        there = frozenset((name, one > 0) for name, one in self.resources.items())
        return self.labels.get(Label.DEDICATED), self.labels.get(DEPLOYED), there


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
    host_bytes: int = 0
    """Of host memory, on the device's node."""
    shown: int = 0
    """Bytes of it that free memory shows already while it loads."""
    promised: bool = False
    """Not reserved yet: kept for a pod that waits until others have left."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has memory. Bytes; no deployment: something that Paddock did not place."""

    deployment: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Holding:
    """How a card of a vendor's plugin is held, or can be."""

    pod: str = ""
    """The holder that has it; empty: none has."""
    free: bool = False
    """Without a holder: whether one can be made that may be given it."""
    why: str = ""
    """Where neither is so: why not."""

    @property
    def missing(self) -> bool:
        """Whether a holder has to be made before a server can have the card."""
        return not self.pod and self.free


@dataclass(frozen=True, slots=True)
class Counted:
    """How the status of a device's node counts its memory."""

    resource: str
    """Extended resource of which a pod asks for one per granule."""
    shown: bool
    """Whether the kubelet has taken it over: otherwise a pod that asks for it could not start."""


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
    budget: int | None = None
    """Bytes that models may have on it at most; UNLIMITED: no figure of its memory is held against a model."""
    reserve: int | None = None
    """Bytes kept free on it; None for the fleet's."""
    foreign: int = 0
    """Bytes that processes have which are none of our servers in their place."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that its owner gave it, in GPU.spec."""
    binder: Binder | None = None
    """How its owner says that pods get it."""
    plugin: DevicePlugin | None = None
    """How the node agent's device plugin gives it out."""
    offer: SliceDevice | None = None
    """What a driver for dynamic resource allocation calls it, where one offers it."""
    lent: str | None = None
    """Resource by which the plugin of its vendor gives it or one of its kind, where the kubelet tells which."""
    holding: Holding | None = None
    """How it is held where a plugin lends it and servers share what holder pods have."""
    counted: Counted | None = None
    """How its node's status counts its memory, where that is switched on and nothing else counts it."""
    more: int = 0
    """Bytes by which a server's overhead here is planned higher, or lower, than by the table: learned from others."""
    reserved: int = field(init=False, compare=False, repr=False, default=0)
    """Bytes reserved in all; added up once, since every decision asks for it."""
    pending: int = field(init=False, compare=False, repr=False, default=0)
    """Of them, what the driver's figures do not show yet."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reserved", sum(claim.bytes for claim in self.claims))
        object.__setattr__(
            self, "pending", sum(max(0, claim.bytes - claim.shown) for claim in self.claims if not claim.resident)
        )

    @property
    def pinnable(self) -> bool:
        """Whether a pod can be given this device alone: by an identifier, or a position that its runtime knows."""
        if self.backend == "CUDA":
            return self.uuid is not None
        if self.backend in ("ROCm", "MUSA"):
            return self.uuid is not None or self.raw_index is not None
        return self.backend in ("Vulkan", "SYCL") and self.raw_index is not None

    @property
    def in_host_memory(self) -> bool:
        """Whether its memory is its node's own: what one of them has is gone from the other.

        Not where no figure of it is held against a model.
        """
        return self.type is DeviceType.INTEGRATED and self.budget != UNLIMITED

    @property
    def exclusive(self) -> bool:
        """Whether one pod at a time has it, however much memory that leaves."""
        if self.holding is not None:
            return False
        if self.binder is not None:
            return self.binder in (Binder.DRA, Binder.VENDOR_PLUGIN)
        return self.offer is not None or self.lent is not None

    @property
    def picked_by_plugin(self) -> bool:
        """Whether not this card is asked for, but any that the plugin of its vendor has left."""
        if self.holding is not None:
            return False
        if self.binder is None:
            return self.lent is not None and self.offer is None
        return self.lent is not None and self.binder is Binder.VENDOR_PLUGIN

    @property
    def unheld(self) -> bool:
        """Whether a holder pod has to get it before a server can have it."""
        return self.holding is not None and self.holding.missing

    def overbooked(self, reserve: int) -> bool:
        """Tell whether more is reserved on it than can be."""
        there = sum(not claim.promised for claim in self.claims)
        return self.reserved > self.capacity(reserve) or (self.exclusive and there > 1)

    def capacity(self, reserve: int) -> int:
        """Bytes that models may have on it when it is empty; `reserve` is the fleet's, its own goes first."""
        if self.budget == UNLIMITED:
            return UNLIMITED
        most = max(0, (self.total or 0) - (reserve if self.reserve is None else self.reserve))
        return most if self.budget is None else min(most, self.budget)

    def available(self, reserve: int) -> int:
        """Bytes that one more model may have: the smaller of ledger and observation, never below 0.

        The first term guards against our own claims that are still on their way, the second against strangers.
        """
        if self.exclusive and self.claims:
            return 0
        ledger = self.capacity(reserve) - self.reserved
        if self.foreign and self.budget != UNLIMITED:
            most = (self.total or 0) - (reserve if self.reserve is None else self.reserve) - self.foreign
            ledger = min(ledger, most - self.reserved)
        if self.free is None or self.budget == UNLIMITED:
            return max(0, ledger)
        return max(0, min(ledger, self.free - self.pending - (reserve if self.reserve is None else self.reserve)))

    def holders(self, reserve: int) -> tuple[Holder, ...]:
        """Give who has its memory: the deployments, most first, then what Paddock did not place."""
        return self.holders_within(self.capacity(reserve), self.available(reserve))

    def holders_within(self, capacity: int, available: int) -> tuple[Holder, ...]:
        """Give the same where capacity and what is available are known already."""
        held: Counter[str] = Counter()
        for claim in self.claims:
            held[claim.deployment] += claim.bytes
        out = tuple(Holder(name, size) for name, size in sorted(held.items(), key=lambda one: (-one[1], one[0])))
        foreign = 0 if self.exclusive and held else capacity - self.reserved - available
        # Free memory is known in steps: less than one of them may be nothing.
        return (*out, Holder(None, foreign)) if foreign >= GRANULE else out

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
    """Every node and device. Devices are in the order of their GPU object's name, and no two have the same.

    A change gives another fleet, which shares with this one all that has not changed.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Never changed in place."""
    devices: tuple[Device, ...] = ()
    reserve: int = 0
    """Bytes kept free on each device that does not say itself."""
    host_budget: str = NO_LIMIT
    """Host memory that models may have on a node that does not say itself: Auto (all that pods may have), Unlimited, or
    a quantity."""
    _index: Index | None = field(init=False, compare=False, repr=False, default=None)

    @property
    def index(self) -> Index:
        """What spares going through all devices; made on first use."""
        if self._index is None:
            object.__setattr__(self, "_index", Index.of(self.devices, self.nodes, self.reserve))
        assert self._index is not None  # noqa: S101 just made
        return self._index

    @property
    def most_available(self) -> int:
        """Bytes that one more model may have where most are left; of devices that are not ready, too."""
        return max((members[-1].available for members in self.index.families.values()), default=0)

    @property
    def backends(self) -> frozenset[str]:
        """By which its devices are used."""
        return frozenset(members[0].device.backend for members in self.index.families.values())

    def device(self, gpu: str) -> Device | None:
        """Give a device by the name of its GPU object."""
        at = self.index.where.get(gpu)
        return None if at is None else self.devices[at]

    def at(self, gpus: Iterable[str]) -> list[Device]:
        """Give devices by their names, those that there are, in the order of the fleet."""
        where = self.index.where
        return [self.devices[at] for at in sorted(where[gpu] for gpu in set(gpus) if gpu in where)]

    def with_devices(self, changed: Iterable[Device] = (), gone: Iterable[str] = ()) -> "Fleet":
        """Give the fleet with some devices changed or new, and without those of some names."""
        index, new = self.index, {one.gpu: one for one in changed}
        pairs: list[tuple[Device | None, Device | None]] = [(self.device(gpu), one) for gpu, one in new.items()]
        pairs += [(left, None) for gpu in set(gone) - set(new) if (left := self.device(gpu)) is not None]
        pairs = [(before, after) for before, after in pairs if before != after]
        if not pairs:
            return self
        if all(before is not None and after is not None for before, after in pairs):
            every, where = list(self.devices), index.where
            for _, after in pairs:
                if after is not None:
                    every[where[after.gpu]] = after
        else:
            moved = {before.gpu for before, _ in pairs if before is not None}
            every = [one for one in self.devices if one.gpu not in moved] + [one for _, one in pairs if one is not None]
            every.sort(key=lambda one: one.gpu)
            where = positions(every)
        fleet = replace(self, devices=tuple(every))
        # A fleet of which much is new goes through all of them sooner than change by change.
        return fleet if len(pairs) > len(every) // 4 + 8 else self._after(fleet, index.changed(pairs, where))

    def with_nodes(self, nodes: Mapping[str, Node]) -> "Fleet":
        """Give the fleet on these nodes."""
        fleet = replace(self, nodes=nodes)
        return fleet if self._index is None else self._after(fleet, self._index.on_nodes(nodes))

    def without(self, pods: Iterable[str]) -> "Fleet":
        """Give the fleet as if these pods (namespace/name) had returned what they hold."""
        gone = frozenset(pods)
        return self.with_devices(device.without(gone) for device in self.at(self.index.holding(gone)))

    def with_claim(self, gpu: str, claim: Claim) -> "Fleet":
        """Give the fleet with one more claim."""
        device = self.device(gpu)
        return self if device is None else self.with_devices((device.with_claims((*device.claims, claim)),))

    @staticmethod
    def _after(fleet: "Fleet", index: Index) -> "Fleet":
        object.__setattr__(fleet, "_index", index)
        return fleet

    def host_limit(self, node: Node) -> int:
        """Give the bytes of host memory that models may have on a node."""
        return limit_of(self.host_budget if node.budget is None else node.budget, node.memory)

    def host_claims(self) -> Mapping[str, int]:
        """Give the bytes of host memory that servers with a device have, by node; a device in it counts, too."""
        return self.index.books.host_claims

    def pool_limit(self, node: Node) -> int:
        """Give the bytes of host memory that servers may have together with devices that are in it: never above all."""
        limit = self.host_limit(node)
        return limit if node.memory is None else min(limit, node.memory)

    def pool_left(self, name: str) -> int:
        """Give what is left of that on a node."""
        node = self.nodes.get(name)
        limit = UNLIMITED if node is None else self.pool_limit(node)
        return limit if limit >= UNLIMITED else max(0, limit - self.host_claims().get(name, 0))

    def host_left(self) -> Mapping[str, int]:
        """Give the bytes of host memory that are left for models, by node where that is limited."""
        index = self.index
        if index.host_limits is None:
            limits = ((name, self.host_limit(node)) for name, node in self.nodes.items())
            index.host_limits = {name: limit for name, limit in limits if limit < UNLIMITED}
        claimed = self.host_claims()
        return {name: max(0, limit - claimed.get(name, 0)) for name, limit in index.host_limits.items()}


def limit_of(budget: str, whole: int | None) -> int:
    """Turn a budget into bytes; `whole` is what Auto means. What cannot be read limits nothing."""
    if budget == AUTO:
        return UNLIMITED if whole is None else whole
    try:
        return UNLIMITED if budget == NO_LIMIT else max(0, int(parse_quantity(budget)))
    except ValueError:
        return UNLIMITED


def device_of(
    gpu: str,
    status: GPUStatus,
    resident: frozenset[str] | set[str] = frozenset(),
    spec: GPUSpec | None = None,
    shown: Mapping[str, int] | None = None,
) -> Device:
    """Turn a GPU object into a device; `resident` holds the pods (namespace/name) that are Ready.

    `shown` has the bytes that the driver shows for pods.
    """
    spec = spec or GPUSpec()
    ready = next((one for one in status.conditions if one.type == ConditionType.READY), None)
    booked = {one.pod for one in status.reservations}
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
            Claim(
                one.pod,
                one.deployment,
                one.bytes,
                one.pod in resident,
                one.host_bytes or 0,
                (shown or {}).get(one.pod, 0),
            )
            for one in status.reservations
        )
        + tuple(
            Claim(one.pod, one.deployment, one.bytes, host_bytes=one.host_bytes or 0, promised=True)
            for one in status.promises
            if one.pod not in booked
        ),
        budget=None if spec.budget == AUTO else limit_of(str(spec.budget), None),
        reserve=int(parse_quantity(spec.reserve)) if spec.reserve is not None else None,
        foreign=int(parse_quantity(memory.foreign)) if memory.foreign else 0,
        labels=spec.labels,
        binder=spec.binder,
        plugin=status.plugin,
        more=more_than_planned(status.backends[0] if status.backends else "", status.learned),
    )
