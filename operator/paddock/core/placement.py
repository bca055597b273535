"""Pick one device for one replica: `place(request, fleet) -> Placement | Unplaceable`.

Filter, rank, pick. Values in, values out; the answer does not depend on the order in which devices are listed, since
the last tie-break is a fixed total order. Every device gets a verdict with numbers.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, DeviceRef, PlacementSpec, Policy, Toleration
from paddock.api.vocabulary import GRANULE, Reason, Verdict
from paddock.core.fleet import Device, Fleet, Node
from paddock.core.quantity import human

SATISFIED_TAINTS = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
)
"""Taints that a node's own state stands for; they are told by their own verdicts."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one replica asks for. Sizes in bytes."""

    need: int
    """On the device, a multiple of 256 MiB."""
    policy: Policy = Policy.AUTO
    devices: tuple[DeviceRef, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    allow_cpu: bool = False
    allow_integrated: AllowIntegrated = AllowIntegrated.AUTO
    on_cpu: bool = False
    """gpuLayers is 0."""
    siblings: frozenset[str] = frozenset()
    """namespace/name of the deployment's other pods, whose devices are avoided where others fit."""
    file_nodes: frozenset[str] | None = None
    """Nodes that have the model file; None when every node can reach it."""
    volume_nodes: frozenset[str] | None = None
    """Nodes that can mount the claim; None when every node can."""
    backends: frozenset[str] | None = None
    """Backends with a server image; None when spec.server.image decides."""
    runtime_classes: Mapping[str, bool] = field(default_factory=dict)
    """By backend: whether the RuntimeClass that it needs exists. Backends that need none are absent."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One device and what was found about it."""

    device: Device
    verdict: Verdict
    detail: str = ""
    available: int = 0
    shortfall: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision. No device means the CPU."""

    device: Device | None
    need: int
    reason: str
    judged: tuple[Judged, ...] = ()
    node: str | None = None
    """The device's node. On the CPU: a node that has the file, or None when the scheduler may pick any."""


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """No device, and why."""

    reason: Reason
    message: str
    judged: tuple[Judged, ...] = ()


MOST_DETAILS = 4
"""Devices that one message tells about."""
Key = tuple[int | str, ...]
Ranking = Callable[[Judged], Key]


def most_memory(judged: Judged) -> Key:
    """Rank by total memory, the largest first."""
    return (-(judged.device.total or 0),)


RANKINGS: Mapping[Policy, Ranking] = {Policy.AUTO: most_memory, Policy.MOST_MEMORY: most_memory}
"""One ranking for each policy: the smallest key wins."""


def place(request: Request, fleet: Fleet) -> Placement | Unplaceable:
    """Pick a device for one replica, or say why there is none."""
    if request.on_cpu:
        if request.allow_cpu:
            return _on_cpu(request, fleet, "gpuLayers is 0", ())
        return Unplaceable(
            Reason.CPU_NOT_ALLOWED, "serving.gpuLayers is 0, which needs placement.allowCPU to be true; it is false"
        )
    judged = tuple(_judge(device, request, fleet) for device in fleet.devices)
    if request.devices:
        return _verbatim(request, judged)
    fitting = [one for one in judged if one.verdict is Verdict.FITS]
    if request.allow_integrated is AllowIntegrated.AUTO and any(
        one.device.type is DeviceType.DISCRETE for one in fitting
    ):
        judged = tuple(
            _refused(one, Verdict.TYPE_NOT_ALLOWED, "a discrete GPU fits")
            if one.verdict is Verdict.FITS and one.device.type is DeviceType.INTEGRATED
            else one
            for one in judged
        )
        fitting = [one for one in judged if one.verdict is Verdict.FITS]
    if fitting:
        best = min(fitting, key=lambda one: _key(one, request))
        return _chosen(best, judged, request, _why(best, fitting, request))
    if request.allow_cpu:
        return _on_cpu(request, fleet, f"placement.allowCPU is true and {_count(judged)}", judged)
    return _unplaceable(request, judged)


def _on_cpu(request: Request, fleet: Fleet, why: str, judged: tuple[Judged, ...]) -> Placement | Unplaceable:
    """Serve from host memory. Only a file that lies on some nodes decides the node; else the scheduler does."""
    if request.file_nodes is None:
        return Placement(None, 0, f"on the CPU: {why}", judged)
    refusals = {name: _node_refusal(fleet.nodes.get(name), request) for name in sorted(request.file_nodes)}
    good = [name for name, refusal in refusals.items() if refusal is None]
    if good:
        # Siblings go round the nodes: no ledger of host memory is kept that could tell which is emptier.
        node = good[len(request.siblings) % len(good)]
        return Placement(None, 0, f"on the CPU of {node}, which has the model file: {why}", judged, node)
    if not refusals:
        return Unplaceable(Reason.MODEL_NOT_FOUND, "the model file is on no node", judged)
    details = "; ".join(f"{name}: {refusal[1]}" for name, refusal in refusals.items() if refusal)
    return Unplaceable(Reason.NO_DEVICE, f"no node with the model file can be used: {details}", judged)


def _key(judged: Judged, request: Request) -> Key:
    """Rank: fewest siblings, discrete first, the policy, most room left, then the GPU object's name."""
    device = judged.device
    siblings = sum(claim.pod in request.siblings for claim in device.claims)
    integrated = request.allow_integrated is AllowIntegrated.AUTO and device.type is DeviceType.INTEGRATED
    return (siblings, int(integrated), *RANKINGS[request.policy](judged), -judged.available, device.gpu)


def _verbatim(request: Request, judged: tuple[Judged, ...]) -> Placement | Unplaceable:
    """Take the first named device that fits; never another one."""
    named = [[one for one in judged if names(ref, one.device)] for ref in request.devices]
    for number, matches in enumerate(named, start=1):
        fitting = [one for one in matches if one.verdict is Verdict.FITS]
        if fitting:
            best = min(fitting, key=lambda one: _key(one, request))
            place_in_list = "" if len(named) == 1 else f", alternative {number} of {len(named)}"
            return _chosen(best, judged, request, f"named in placement.devices{place_in_list}")
    if judged and not any(named):
        wanted = " or ".join(describe(ref) for ref in request.devices)
        return Unplaceable(
            Reason.DEVICE_NOT_FOUND,
            f"placement.devices names {wanted}, but none of the {len(judged)} known GPUs is that; "
            "compare with `kubectl get gpus -o wide`",
            judged,
        )
    return _unplaceable(request, judged)


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
    if wish.devices:
        return any(names(ref, device) for ref in wish.devices)
    return device.type is not DeviceType.INTEGRATED or wish.allow_integrated is not AllowIntegrated.NEVER


def normal_pci_id(text: str) -> str:
    """Give a PCI address as ggml writes it: lower case, a domain of at least four digits."""
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


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


def _judge(device: Device, request: Request, fleet: Fleet) -> Judged:
    """Give the first filter's refusal, or Fits."""
    available = device.available(fleet.reserve)
    if request.devices and not any(names(ref, device) for ref in request.devices):
        return Judged(device, Verdict.NOT_SELECTED, "not named in placement.devices", available)
    refusal = _node_refusal(fleet.nodes.get(device.node), request) or _device_refusal(device, request)
    if refusal is not None:
        return Judged(device, refusal[0], refusal[1], available)
    capacity = device.capacity(fleet.reserve)
    if request.need > capacity:
        detail = f"needs {human(request.need)}, has {human(capacity)} when empty"
        return Judged(device, Verdict.MODEL_TOO_BIG, detail, available, request.need - capacity)
    if request.need > available:
        left = f"{human(available)} left of {human(capacity)}"
        detail = f"needs {human(request.need)}, has {left}{_holders(device, fleet.reserve)}"
        return Judged(device, Verdict.NO_ROOM, detail, available, request.need - available)
    return Judged(device, Verdict.FITS, f"{human(available)} left of {human(capacity)}", available)


def _node_refusal(node: Node | None, request: Request) -> tuple[Verdict, str] | None:
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


def _device_refusal(device: Device, request: Request) -> tuple[Verdict, str] | None:
    if not device.ready or device.total is None:
        return Verdict.NOT_READY, (device.why_not if not device.ready else "") or "its memory is unknown"
    if request.backends is not None and device.backend not in request.backends:
        return Verdict.BACKEND_MISSING, f"no server image for backend {device.backend}"
    if not request.runtime_classes.get(device.backend, True):
        return Verdict.RUNTIME_CLASS_MISSING, f"no RuntimeClass for backend {device.backend}"
    if device.type is DeviceType.REMOTE:
        return Verdict.TYPE_NOT_ALLOWED, "an RPC device belongs to another machine"
    if device.type is DeviceType.INTEGRATED and request.allow_integrated is AllowIntegrated.NEVER:
        return Verdict.TYPE_NOT_ALLOWED, "allowIntegrated is Never"
    if device.ambiguous:
        return Verdict.AMBIGUOUS, "another device looks alike and neither has an identifier"
    if not device.pinnable:
        return Verdict.NOT_READY, f"{device.name} has no identifier by which a pod could be given it alone"
    return None


def _holders(device: Device, reserve: int) -> str:
    """Say who has the memory that is missing: deployments, and what runs beside Paddock."""
    held: Counter[str] = Counter()
    for claim in device.claims:
        held[claim.deployment] += claim.bytes
    parts = [f"{human(size)} for {name}" for name, size in sorted(held.items(), key=lambda x: (-x[1], x[0]))]
    parts = parts[:3] + ([f"{len(parts) - 3} more"] if len(parts) > 3 else [])  # noqa: PLR2004 enough for a sentence
    foreign = device.capacity(reserve) - device.reserved - device.available(reserve)
    if foreign >= GRANULE:
        parts.append(f"{human(foreign)} used by others than Paddock")
    return f" ({', '.join(parts)})" if parts else ""


def _refused(judged: Judged, verdict: Verdict, detail: str) -> Judged:
    return Judged(judged.device, verdict, detail, judged.available)


def _chosen(best: Judged, judged: tuple[Judged, ...], request: Request, why: str) -> Placement:
    verdicts = tuple(
        Judged(one.device, Verdict.CHOSEN, one.detail, one.available) if one is best else one for one in judged
    )
    device = best.device
    numbers = f"needs {human(request.need)} of {human(best.available)} left"
    return Placement(device, request.need, f"{_tell(device)}: {why}; {numbers}", verdicts, device.node)


def _tell(device: Device) -> str:
    """Name a device for a person."""
    return f"{device.description or device.name} ({device.pci_id or device.uuid or device.name}) on {device.node}"


def _why(best: Judged, fitting: list[Judged], request: Request) -> str:
    if len(fitting) == 1:
        return "the only device that fits"
    others = [one.device for one in fitting if one is not best]
    largest = max(other.total or 0 for other in others)
    rule = f"most memory of {len(fitting)} devices that fit (policy {request.policy})"
    total = best.device.total or 0
    if total < largest:
        return f"most memory of the devices with the fewest replicas of this deployment (policy {request.policy})"
    equals = [one for one in fitting if one is not best and (one.device.total or 0) == total]
    if any(one.available >= best.available for one in equals):
        return f"{rule}, first among equals"
    return f"{rule}, most room left among equals" if equals else rule


def _count(judged: tuple[Judged, ...]) -> str:
    """Give the verdicts in words: `0 of 3 devices fit: 2 NoRoom, 1 ModelTooBig`."""
    counts = Counter(one.verdict for one in judged)
    if not judged:
        return "no device is known"
    parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items(), key=lambda x: (-x[1], x[0])))
    return f"0 of {len(judged)} devices fit" + (f": {parts}" if parts else "")


def _unplaceable(request: Request, judged: tuple[Judged, ...]) -> Unplaceable:
    """Say why nothing fits, with numbers; only of the named devices where some are named."""
    if not judged:
        return Unplaceable(Reason.NO_NODE_AGENT, "no node agent has reported a device yet", judged)
    meant = tuple(one for one in judged if one.verdict is not Verdict.NOT_SELECTED)
    count = _count(meant).replace("devices fit", "named devices fit" if request.devices else "devices fit")
    short = [one for one in meant if one.verdict is Verdict.NO_ROOM]
    if short:
        nearest = min(short, key=lambda one: (one.shortfall, one.device.gpu))
        message = f"{count}. Nearest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} short"
        return Unplaceable(Reason.WAITING_FOR_DEVICE, message, judged)
    big = [one for one in meant if one.verdict is Verdict.MODEL_TOO_BIG]
    if big:
        nearest = min(big, key=lambda one: (one.shortfall, one.device.gpu))
        message = f"{count}. The largest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} too small"
        return Unplaceable(Reason.INSUFFICIENT_MEMORY, message, judged)
    if all(one.verdict is Verdict.MODEL_MISSING for one in meant):
        nodes = ", ".join(sorted({one.device.node for one in meant}))
        return Unplaceable(Reason.MODEL_NOT_FOUND, f"{count}. The model file is not on {nodes}", judged)
    details = sorted({f"{one.device.gpu}: {one.detail}" for one in meant if one.detail})
    more = f"; and {len(details) - MOST_DETAILS} more" if len(details) > MOST_DETAILS else ""
    return Unplaceable(Reason.NO_DEVICE, f"{count}. {'; '.join(details[:MOST_DETAILS])}{more}", judged)


def _missing(judged: Judged) -> str:
    return human(judged.shortfall, up=True)
