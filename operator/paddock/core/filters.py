"""What one device is for one request: the first thing that refuses it, or that it fits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, DeviceRef, PlacementSpec
from paddock.api.queue import MemoryHolder, Shortage
from paddock.api.vocabulary import Verdict
from paddock.core.binding import Asked, Refused, choose, facts_of
from paddock.core.fleet import Device, Fleet, Node
from paddock.core.quantity import UNLIMITED, human
from paddock.core.request import Request
from paddock.core.rules import excess, forbidden, used
from paddock.core.selector import mismatch, normal_pci_id

MOST_HOLDERS = 3
"""Holders of memory that one sentence names."""
MOST_LISTED = 10
"""Holders of memory that a status names."""
SATISFIED_TAINTS = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
)
"""Taints that a node's own state stands for; they are told by their own verdicts."""


class Judged(NamedTuple):
    """One device and what was found about it. Sizes in bytes. A tuple, since there is one per device and decision."""

    device: Device
    verdict: Verdict
    why: str = ""
    """What refuses it; empty where numbers say it."""
    available: int = 0
    """Left on the device."""
    capacity: int = 0
    """What models may have on it when it is empty."""
    need: int = 0
    shortfall: int = 0
    """What is missing: on the device, of host memory (HostMemory) or of what a policy allows (OverQuota)."""
    other: tuple[int, int] = (0, 0)
    """With HostMemory and OverQuota: what is needed of that, and what is left."""

    @property
    def detail(self) -> str:
        """What there is to say, in words; put together only for who reads it."""
        if self.why:
            return self.why
        left = f"{human(self.available)} left of {human(self.capacity)}"
        if self.verdict is Verdict.MODEL_TOO_BIG:
            return f"needs {human(self.need)}, has {human(self.capacity)} when empty"
        if self.verdict is Verdict.NO_ROOM and self.device.exclusive and self.device.claims:
            return f"needs {human(self.need)}, and is given to one pod at a time{self._held()}"
        if self.verdict is Verdict.NO_ROOM:
            return f"needs {human(self.need)}, has {left}{self._held()}"
        return left

    def _held(self) -> str:
        """Say who has the memory that is missing: deployments, and what runs beside Paddock."""
        known, foreign = self._holders()
        parts = [f"{human(one.bytes)} for {one.deployment}" for one in known[:MOST_HOLDERS]]
        parts += [f"{len(known) - MOST_HOLDERS} more"] if len(known) > MOST_HOLDERS else []
        parts += [f"{human(one.bytes)} used by others than Paddock" for one in foreign]
        return f" ({', '.join(parts)})" if parts else ""

    def _holders(self) -> tuple[list[MemoryHolder], list[MemoryHolder]]:
        every = self.device.holders_within(self.capacity, self.available)
        said = [MemoryHolder(deployment=one.deployment, bytes=one.bytes) for one in every]
        return [one for one in said if one.deployment], [one for one in said if not one.deployment]

    @property
    def shortage(self) -> Shortage:
        """What is missing here, with who has it, for a status."""
        if self.verdict in (Verdict.HOST_MEMORY, Verdict.OVER_QUOTA):
            needed, left = self.other
            return Shortage(
                gpu=self.device.gpu,
                node=self.device.node,
                memory="Host" if self.verdict is Verdict.HOST_MEMORY else "Quota",
                required_bytes=needed,
                available_bytes=left,
            )
        known, foreign = self._holders()
        return Shortage(
            gpu=self.device.gpu,
            node=self.device.node,
            memory="Device",
            required_bytes=self.need,
            available_bytes=self.capacity if self.verdict is Verdict.MODEL_TOO_BIG else self.available,
            holders=[] if self.verdict is Verdict.MODEL_TOO_BIG else (known + foreign)[:MOST_LISTED],
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """What is found once for all devices."""

    of_node: Callable[[str], tuple[Verdict, str] | None]
    """Why a node, by name, can take no replica."""
    hosts: Mapping[str, int]
    """Host memory left, by node, where it is limited."""
    quotas: Mapping[str, int]
    """Bytes reserved under each rule with a quota."""
    pool_of: Callable[[str], int]
    """Host memory left on a node, by name, for devices that are in it."""

    def host_left(self, device: Device) -> int:
        """Give the bytes of host memory that are left for a server with this device."""
        return self.pool_of(device.node) if device.in_host_memory else self.hosts.get(device.node, UNLIMITED)


def sums_of(request: Request, fleet: Fleet) -> Sums:
    """Give what is found once for all devices. Each node is looked at once."""

    @cache
    def of_node(name: str) -> tuple[Verdict, str] | None:
        return node_refusal(fleet.nodes.get(name), request)

    hosts = fleet.host_left() if request.host_need else {}
    return Sums(of_node, hosts, used(request.rules, fleet), cache(fleet.pool_left))


def judge_all(request: Request, fleet: Fleet) -> tuple[Judged, ...]:
    """Judge every device, in the order of the fleet."""
    sums = sums_of(request, fleet)
    return tuple(judge(device, request, fleet, sums) for device in fleet.devices)


def standing_refusal(device: Device, request: Request, fleet: Fleet, sums: Sums) -> tuple[Verdict, str] | None:
    """Give why a device is nothing for a request, however empty it is."""
    return _selection(device, request, fleet) or sums.of_node(device.node) or _device_refusal(device, request, fleet)


def judge(device: Device, request: Request, fleet: Fleet, sums: Sums) -> Judged:
    """Give the first filter's refusal, or Fits."""
    available, capacity, need = device.available(fleet.reserve), device.capacity(fleet.reserve), request.need_on(device)
    refusal = standing_refusal(device, request, fleet, sums)
    if refusal is not None:
        return Judged(device, refusal[0], refusal[1], available, capacity, need)
    if need > capacity:
        return Judged(device, Verdict.MODEL_TOO_BIG, "", available, capacity, need, need - capacity)
    if need > available:
        return Judged(device, Verdict.NO_ROOM, "", available, capacity, need, need - available)
    wanted, left = request.host_need_on(device), sums.host_left(device)
    if wanted > left:
        shared = ", which the device is in" if device.in_host_memory else ""
        why = f"needs {human(wanted)} of host memory{shared}, its node has {human(left)} left for models"
        return Judged(device, Verdict.HOST_MEMORY, why, available, capacity, need, wanted - left, (wanted, left))
    over = excess(request.rules, device, fleet.nodes.get(device.node), need, sums.quotas) if request.rules else None
    if over is not None:
        short = (over.required, over.left)
        return Judged(
            device, Verdict.OVER_QUOTA, over.words, available, capacity, need, over.required - over.left, short
        )
    return Judged(device, Verdict.FITS, "", available, capacity, need)


def _selection(device: Device, request: Request, fleet: Fleet) -> tuple[Verdict, str] | None:
    if request.devices and not any(names(ref, device) for ref in request.devices):
        return Verdict.NOT_SELECTED, "not named in placement.devices"
    if request.selector is not None:
        excluded = mismatch(request.selector, device, fleet.nodes.get(device.node))
        if excluded is not None:
            return Verdict.NOT_SELECTED, f"placement.selector: {excluded}"
    if device.picked_by_plugin and (request.devices or request.selector is not None):
        return Verdict.VENDOR_PLUGIN_PRESENT, "its vendor's plugin picks the card, whatever placement names or selects"
    if request.rules:
        words = forbidden(request.rules, device, fleet.nodes.get(device.node))
        if words is not None:
            return Verdict.NOT_ALLOWED, words
    return None


def node_refusal(node: Node | None, request: Request) -> tuple[Verdict, str] | None:
    """Give why a node can take no replica, if so."""
    if node is None or not node.ready:
        return Verdict.NODE_NOT_READY, "the node is not Ready" if node else "the node does not exist"
    if not node.schedulable:
        return Verdict.NODE_UNSCHEDULABLE, "the node is cordoned"
    missing = [f"{key}={value}" for key, value in request.node_selector.items() if node.labels.get(key) != value]
    if missing:
        return Verdict.NODE_NOT_SELECTED, f"the node lacks {', '.join(sorted(missing))}"
    for taint in node.taints:
        blocking = taint.effect in ("NoSchedule", "NoExecute") and taint.key not in SATISFIED_TAINTS
        if blocking and not taint.tolerated_by(request.tolerations):
            return Verdict.NODE_TAINTED, f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    if request.file_nodes is not None and node.name not in request.file_nodes:
        return Verdict.MODEL_MISSING, "the model file is not on the node"
    if request.volume_nodes is not None and node.name not in request.volume_nodes:
        return Verdict.VOLUME_ELSEWHERE, "the claim's volume cannot be mounted there"
    return None


def _device_refusal(device: Device, request: Request, fleet: Fleet) -> tuple[Verdict, str] | None:
    if not device.ready or device.total is None:
        return Verdict.NOT_READY, (device.why_not if not device.ready else "") or "its memory is unknown"
    if request.backends is not None and device.backend not in request.backends:
        return Verdict.BACKEND_MISSING, f"no server image for backend {device.backend}"
    facts = facts_of(device.node, fleet.nodes.get(device.node), request.classes)
    way = choose(device, facts, Asked(request.runtime_class))
    if isinstance(way, Refused):
        return way.verdict, way.reason
    if device.type is DeviceType.REMOTE:
        return Verdict.TYPE_NOT_ALLOWED, "an RPC device belongs to another machine"
    if device.type is DeviceType.INTEGRATED and request.allow_integrated is AllowIntegrated.NEVER:
        return Verdict.TYPE_NOT_ALLOWED, "allowIntegrated is Never"
    if device.ambiguous:
        return Verdict.AMBIGUOUS, "another device looks alike and neither has an identifier"
    if not device.pinnable:
        return Verdict.NOT_READY, f"{device.name} has no identifier by which a pod could be given it alone"
    return None


def names(ref: DeviceRef, device: Device) -> bool:
    """Tell whether a reference means this device."""
    if ref.uuid is not None:
        return device.uuid is not None and device.uuid.lower() == ref.uuid.lower()
    if ref.node != device.node:
        return False
    if ref.pci_id is not None:
        return device.pci_id is not None and device.pci_id == normal_pci_id(ref.pci_id)
    if ref.index is not None:
        return device.index == ref.index
    return device.name == ref.name


def allows(wish: PlacementSpec, device: Device | None, node: Node | None) -> bool:
    """Tell whether a spec allows what a running replica has: a device, or the CPU (None), on a node.

    Room and readiness are no question here, nor is the policy: its change moves nothing.
    """
    if any(node is None or node.labels.get(key) != value for key, value in wish.node_selector.items()):
        return False
    if device is None:
        return wish.allow_cpu and not wish.devices
    if wish.selector is not None and mismatch(wish.selector, device, node) is not None:
        return False
    if wish.devices:
        return any(names(ref, device) for ref in wish.devices)
    return device.type is not DeviceType.INTEGRATED or wish.allow_integrated is not AllowIntegrated.NEVER


def describe(ref: DeviceRef) -> str:
    """Give a reference in words."""
    if ref.uuid is not None:
        return f"uuid {ref.uuid}"
    what = next(
        f"{key} {value}"
        for key, value in (("pciId", ref.pci_id), ("index", ref.index), ("name", ref.name))
        if value is not None
    )
    return f"{what} on {ref.node}"
