"""Pick one device for one replica: `place(request, fleet) -> Placement | Unplaceable`.

Filter, rank, pick. Values in, values out; the answer does not depend on the order in which devices are listed, since
the last tie-break is a fixed total order. Every device gets a verdict with numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, ReplicaSpread
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.filters import Judged, describe, judge_all, names, node_refusal
from paddock.core.fleet import Device, Fleet
from paddock.core.policy import POLICIES
from paddock.core.quantity import human
from paddock.core.request import Request
from paddock.core.selector import weight_of


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
    nearest: Judged | None = None
    """Where only memory is missing: the device that came nearest. What it lacks is its `shortage`."""


MOST_DETAILS = 4
"""Devices that one message tells about."""
SHORT = (Verdict.NO_ROOM, Verdict.HOST_MEMORY, Verdict.OVER_QUOTA)
"""Verdicts that go away by waiting; what stands further left is told first."""
BACK = 1_000_000
"""Weight of the device that a sticky replica had last: above all preferences together."""
ZONE = "topology.kubernetes.io/zone"
"""Label of a node."""


def place(request: Request, fleet: Fleet) -> Placement | Unplaceable:
    """Pick a device for one replica, or say why there is none."""
    if request.on_cpu:
        if request.allow_cpu:
            return _on_cpu(request, fleet, "gpuLayers is 0", ())
        return Unplaceable(
            Reason.CPU_NOT_ALLOWED, "serving.gpuLayers is 0, which needs placement.allowCPU to be true; it is false"
        )
    judged = judge_all(request, fleet)
    if request.devices:
        return _verbatim(request, judged, fleet)
    fitting = [one for one in judged if one.verdict is Verdict.FITS]
    if request.allow_integrated is AllowIntegrated.AUTO and any(
        one.device.type is DeviceType.DISCRETE for one in fitting
    ):
        judged = tuple(
            one._replace(verdict=Verdict.TYPE_NOT_ALLOWED, why="a discrete GPU fits")
            if one.verdict is Verdict.FITS and one.device.type is DeviceType.INTEGRATED
            else one
            for one in judged
        )
        fitting = [one for one in judged if one.verdict is Verdict.FITS]
    if fitting:
        best, why = _pick(fitting, request, fleet)
        return _chosen(best, judged, why)
    if request.allow_cpu:
        return _on_cpu(request, fleet, f"placement.allowCPU is true and {_count(judged)}", judged)
    return _unplaceable(request, judged)


def _on_cpu(request: Request, fleet: Fleet, why: str, judged: tuple[Judged, ...]) -> Placement | Unplaceable:
    """Serve from host memory. Only a file that lies on some nodes decides the node; else the scheduler does."""
    if request.file_nodes is None:
        return Placement(None, 0, f"on the CPU: {why}", judged)
    refusals = {name: node_refusal(fleet.nodes.get(name), request) for name in sorted(request.file_nodes)}
    good = [name for name, refusal in refusals.items() if refusal is None]
    if good:
        # Siblings go round the nodes: no ledger of host memory is kept that could tell which is emptier.
        node = good[len(request.siblings) % len(good)]
        return Placement(None, 0, f"on the CPU of {node}, which has the model file: {why}", judged, node)
    if not refusals:
        return Unplaceable(Reason.MODEL_NOT_FOUND, "the model file is on no node", judged)
    details = "; ".join(f"{name}: {refusal[1]}" for name, refusal in refusals.items() if refusal)
    return Unplaceable(Reason.NO_DEVICE, f"no node with the model file can be used: {details}", judged)


def _pick(fitting: Sequence[Judged], request: Request, fleet: Fleet) -> tuple[Judged, str]:
    """Pick one, and say why: fewest siblings, then preferences, discrete first, the policy, the GPU object's name."""
    keys = _first_keys(fitting, request, fleet)
    least = min(keys.values())
    leaders = [one for one in fitting if keys[one.device.gpu] == least]
    ranking = POLICIES[request.policy](leaders, request)
    # Where the policy sees no difference, a node that has the file goes first.
    far = {one.device.gpu: int(one.device.node not in request.near_nodes) for one in leaders}
    best, *others = nsmallest(2, leaders, key=lambda one: (*ranking.key(one), far[one.device.gpu], one.device.gpu))
    if len(fitting) == 1:
        return best, "the only device that fits"
    scope = f"{len(leaders)} devices that fit"
    if len(leaders) < len(fitting):
        scope = f"{len(fitting)} devices that fit" + _narrowed(keys, least, request)
    policy = f"policy {request.policy}"
    if len(leaders) == 1:
        return best, f"the one of {scope} ({policy})"
    why = f"{ranking.words} of {scope} ({policy})"
    mine, next_ = ranking.key(best), ranking.key(others[0])
    if mine[: ranking.told] == next_[: ranking.told]:
        near = "one whose node has the model file" if not far[best.device.gpu] and any(far.values()) else "first"
        why += f", {near} among equals" if mine == next_ else f", {ranking.ties} among equals"
    return best, why


def _first_keys(fitting: Sequence[Judged], request: Request, fleet: Fleet) -> dict[str, tuple[int, ...]]:
    """Give what goes before the policy, by GPU: siblings near it, how it is preferred, whether it is integrated."""
    crowd = _crowds(request, fleet)
    automatic = request.allow_integrated is AllowIntegrated.AUTO

    def first(device: Device) -> tuple[int, ...]:
        integrated = automatic and device.type is DeviceType.INTEGRATED
        liked = BACK if device.gpu == request.last else 0
        if request.preferences:
            liked += weight_of(request.preferences, device, fleet.nodes.get(device.node))
        return (*crowd(device), -liked, int(integrated))

    return {one.device.gpu: first(one.device) for one in fitting}


def _narrowed(keys: Mapping[str, tuple[int, ...]], least: tuple[int, ...], request: Request) -> str:
    """Say what narrowed the choice before the policy was asked."""
    parts = []
    if any(key[:-2] != least[:-2] for key in keys.values()):
        where = {ReplicaSpread.DEVICE: "", ReplicaSpread.NODE: " on their node", ReplicaSpread.ZONE: " in their zone"}
        parts.append(f"with the fewest replicas of this deployment{where[request.replica_spread]}")
    if any(key[:-2] == least[:-2] and key[-2] != least[-2] for key in keys.values()):
        back = -least[-2] >= BACK
        parts.append("where it was before (sticky)" if back else f"preferred most (weight {-least[-2]})")
    if any(key[:-1] == least[:-1] and key[-1] != least[-1] for key in keys.values()):
        parts.append("discrete")
    return " " + ", ".join(parts)


def _crowds(request: Request, fleet: Fleet) -> Callable[[Device], tuple[int, ...]]:
    """Give how many siblings are near a device: on itself, and on its node or in its zone where asked to spread so."""
    if not request.siblings:
        return lambda _: ()
    on: Counter[str] = Counter()
    for device in fleet.devices:
        here = sum(claim.pod in request.siblings for claim in device.claims)
        if here:
            on[device.gpu] = here
            on[f"node {device.node}"] += here
            on[f"zone {_zone(device, fleet)}"] += here
    match request.replica_spread:
        case ReplicaSpread.DEVICE:
            return lambda device: (on[device.gpu],)
        case ReplicaSpread.NODE:
            return lambda device: (on[f"node {device.node}"], on[device.gpu])
        case ReplicaSpread.ZONE:
            return lambda device: (on[f"zone {_zone(device, fleet)}"], on[f"node {device.node}"], on[device.gpu])


def _zone(device: Device, fleet: Fleet) -> str:
    """Give the zone of a device's node; a node without one is a zone of its own."""
    node = fleet.nodes.get(device.node)
    return (node.labels.get(ZONE) if node is not None else None) or f"of {device.node}"


def _verbatim(request: Request, judged: tuple[Judged, ...], fleet: Fleet) -> Placement | Unplaceable:
    """Take the first named device that fits; never another one."""
    named = [[one for one in judged if names(ref, one.device)] for ref in request.devices]
    for number, matches in enumerate(named, start=1):
        fitting = [one for one in matches if one.verdict is Verdict.FITS]
        if fitting:
            best, _ = _pick(fitting, request, fleet)
            place_in_list = "" if len(named) == 1 else f", alternative {number} of {len(named)}"
            return _chosen(best, judged, f"named in placement.devices{place_in_list}")
    if judged and not any(named):
        wanted = " or ".join(describe(ref) for ref in request.devices)
        return Unplaceable(
            Reason.DEVICE_NOT_FOUND,
            f"placement.devices names {wanted}, but none of the {len(judged)} known GPUs is that; "
            "compare with `kubectl get gpus -o wide`",
            judged,
        )
    return _unplaceable(request, judged)


def _chosen(best: Judged, judged: tuple[Judged, ...], why: str) -> Placement:
    verdicts = tuple(one._replace(verdict=Verdict.CHOSEN) if one is best else one for one in judged)
    device = best.device
    numbers = f"needs {human(best.need)} of {human(best.available)} left"
    return Placement(device, best.need, f"{_tell(device)}: {why}; {numbers}", verdicts, device.node)


def _tell(device: Device) -> str:
    """Name a device for a person."""
    return f"{device.description or device.name} ({device.pci_id or device.uuid or device.name}) on {device.node}"


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
    if not meant:
        why = _several([f"{one.device.gpu}: {one.detail.removeprefix('placement.selector: ')}" for one in judged])
        message = f"placement.selector excludes all {len(judged)} known devices. {why}"
        return Unplaceable(Reason.NO_DEVICE, message, judged)
    count = _count(meant).replace("devices fit", "named devices fit" if request.devices else "devices fit")
    short = [one for one in meant if one.verdict in SHORT]
    if short:
        nearest = min(short, key=lambda one: (SHORT.index(one.verdict), one.shortfall, one.device.gpu))
        message = f"{count}. Nearest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} short"
        return Unplaceable(Reason.WAITING_FOR_DEVICE, message, judged, nearest)
    big = [one for one in meant if one.verdict is Verdict.MODEL_TOO_BIG]
    if big:
        nearest = min(big, key=lambda one: (one.shortfall, one.device.gpu))
        message = f"{count}. The largest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} too small"
        return Unplaceable(Reason.INSUFFICIENT_MEMORY, message, judged, nearest)
    if all(one.verdict is Verdict.MODEL_MISSING for one in meant):
        nodes = ", ".join(sorted({one.device.node for one in meant}))
        return Unplaceable(Reason.MODEL_NOT_FOUND, f"{count}. The model file is not on {nodes}", judged)
    details = _several([f"{one.device.gpu}: {one.detail}" for one in meant if one.detail])
    return Unplaceable(Reason.NO_DEVICE, f"{count}. {details}", judged)


def _several(details: Iterable[str]) -> str:
    """Join details in their order, as many as a message tells."""
    found = sorted(set(details))
    more = f"; and {len(found) - MOST_DETAILS} more" if len(found) > MOST_DETAILS else ""
    return "; ".join(found[:MOST_DETAILS]) + more


def _missing(judged: Judged) -> str:
    return human(judged.shortfall, up=True)
