"""Placement the plain way: every device is judged and every fitting one has its key. The reference for `place`.

Obviously right and slow. It shares with the product what is said of one device (`filters`, `selector`, `rules`), and
nothing of classes, indices or candidates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, Policy, ReplicaSpread
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.choice import BACK
from paddock.core.filters import Judged, Sums, describe, judge, names, node_refusal
from paddock.core.placement import MOST_DETAILS, SHORT, Placement, Unplaceable
from paddock.core.policy import ATTAINED, NEAR_FASTEST, SPEED_CLASS, turn
from paddock.core.quantity import UNLIMITED, human
from paddock.core.selector import weight_of
from paddock.core.survey import ZONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from paddock.core.fleet import Device, Fleet
    from paddock.core.request import Request
    from paddock.core.rules import Rule

Key = tuple[int, ...]


def judge_plainly(request: Request, fleet: Fleet) -> tuple[Judged, ...]:
    """Judge every device, with sums that are added up anew."""
    sums = Sums(
        lambda name: node_refusal(fleet.nodes.get(name), request),
        _hosts(request, fleet),
        used(request.rules, fleet),
        lambda name: _pool(name, fleet),
    )
    return tuple(judge(device, request, fleet, sums) for device in fleet.devices)


def _hosts(request: Request, fleet: Fleet) -> Mapping[str, int]:
    limits = {node.name: limit for node in fleet.nodes.values() if (limit := fleet.host_limit(node)) < UNLIMITED}
    if not limits or not request.host_need:
        return {}
    return {name: max(0, limit - _claimed(name, fleet)) for name, limit in limits.items()}


def _claimed(name: str, fleet: Fleet) -> int:
    return sum(
        claim.host_bytes + claim.bytes * (device.type is DeviceType.INTEGRATED and device.budget != UNLIMITED)
        for device in fleet.devices
        for claim in device.claims
        if device.node == name
    )


def _pool(name: str, fleet: Fleet) -> int:
    node = fleet.nodes.get(name)
    limits = [] if node is None else [fleet.host_limit(node), UNLIMITED if node.memory is None else node.memory]
    least = min(limits, default=UNLIMITED)
    return least if least >= UNLIMITED else max(0, least - _claimed(name, fleet))


def used(rules: Iterable[Rule], fleet: Fleet) -> Mapping[str, int]:
    """Give the bytes that the namespaces of each rule with a quota have reserved, by the rule's name."""
    out: Counter[str] = Counter()
    for rule in rules:
        if rule.quota is not None:
            for device in fleet.devices:
                for claim in device.claims:
                    out[rule.name] += claim.bytes * rule.covers(claim.deployment.partition("/")[0])
    return out


def place_plainly(request: Request, fleet: Fleet) -> Placement | Unplaceable:
    """Pick a device for one replica, or say why there is none."""
    if request.on_cpu:
        if request.allow_cpu:
            return _on_cpu(request, fleet, "gpuLayers is 0", ())
        return Unplaceable(
            Reason.CPU_NOT_ALLOWED, "serving.gpuLayers is 0, which needs placement.allowCPU to be true; it is false"
        )
    judged = judge_plainly(request, fleet)
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
        return Placement(None, 0, f"on the CPU: {why}", _known(judged))
    refusals = {name: node_refusal(fleet.nodes.get(name), request) for name in sorted(request.file_nodes)}
    good = [name for name, refusal in refusals.items() if refusal is None]
    if good:
        # Siblings go round the nodes: no ledger of host memory is kept that could tell which is emptier.
        node = good[len(request.siblings) % len(good)]
        return Placement(None, 0, f"on the CPU of {node}, which has the model file: {why}", _known(judged), node)
    if not refusals:
        return Unplaceable(Reason.MODEL_NOT_FOUND, "the model file is on no node", _known(judged))
    details = "; ".join(f"{name}: {refusal[1]}" for name, refusal in refusals.items() if refusal)
    return Unplaceable(Reason.NO_DEVICE, f"no node with the model file can be used: {details}", _known(judged))


def _pick(fitting: Sequence[Judged], request: Request, fleet: Fleet) -> tuple[Judged, str]:
    """Pick one, and say why: fewest siblings, then preferences, discrete first, the policy, the GPU object's name."""
    keys = _first_keys(fitting, request, fleet)
    least = min(keys.values())
    leaders = [one for one in fitting if keys[one.device.gpu] == least]
    ranking = POLICIES[request.policy](leaders, request)
    far = {one.device.gpu: int(one.device.node not in request.near_nodes) for one in leaders}
    best, *others = sorted(leaders, key=lambda one: (*ranking.key(one), far[one.device.gpu], one.device.gpu))
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
        liked = weight_of(request.preferences, device, fleet.nodes.get(device.node))
        liked += BACK if device.gpu == request.last else 0
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
            _known(judged),
        )
    return _unplaceable(request, judged)


def _chosen(best: Judged, judged: tuple[Judged, ...], why: str) -> Placement:
    verdicts = tuple(one._replace(verdict=Verdict.CHOSEN) if one is best else one for one in judged)
    device = best.device
    numbers = f"needs {human(best.need)} of {human(best.available)} left"
    return Placement(device, best.need, f"{_tell(device)}: {why}; {numbers}", _known(verdicts), device.node)


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
        return Unplaceable(Reason.NO_NODE_AGENT, "no node agent has reported a device yet", _known(judged))
    meant = tuple(one for one in judged if one.verdict is not Verdict.NOT_SELECTED)
    if not meant:
        asked = [one for one in judged if not request.devices or any(names(ref, one.device) for ref in request.devices)]
        why = _several([f"{one.device.gpu}: {one.detail.removeprefix('placement.selector: ')}" for one in asked])
        which = f"{len(asked)} {'named' if request.devices else 'known'} devices"
        message = f"placement.selector excludes all {which}. {why}"
        return Unplaceable(Reason.NO_DEVICE, message, _known(judged))
    count = _count(meant).replace("devices fit", "named devices fit" if request.devices else "devices fit")
    short = [one for one in meant if one.verdict in SHORT]
    if short:
        nearest = min(short, key=lambda one: (SHORT.index(one.verdict), one.shortfall, one.device.gpu))
        message = f"{count}. Nearest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} short"
        return Unplaceable(Reason.WAITING_FOR_DEVICE, message, _known(judged), nearest)
    big = [one for one in meant if one.verdict is Verdict.MODEL_TOO_BIG]
    if big:
        nearest = min(big, key=lambda one: (one.shortfall, one.device.gpu))
        message = f"{count}. The largest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} too small"
        return Unplaceable(Reason.INSUFFICIENT_MEMORY, message, _known(judged), nearest)
    if all(one.verdict is Verdict.MODEL_MISSING for one in meant):
        nodes = ", ".join(sorted({one.device.node for one in meant}))
        return Unplaceable(Reason.MODEL_NOT_FOUND, f"{count}. The model file is not on {nodes}", _known(judged))
    details = _several([f"{one.device.gpu}: {one.detail}" for one in meant if one.detail])
    return Unplaceable(Reason.NO_DEVICE, f"{count}. {details}", _known(judged))


def _several(details: Iterable[str]) -> str:
    """Join details in their order, as many as a message tells."""
    found = sorted(set(details))
    more = f"; and {len(found) - MOST_DETAILS} more" if len(found) > MOST_DETAILS else ""
    return "; ".join(found[:MOST_DETAILS]) + more


def _missing(judged: Judged) -> str:
    return human(judged.shortfall, up=True)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A policy's answer for one set of devices."""

    key: Callable[[Judged], Key]
    words: str
    """What the best one is."""
    ties: str
    """What decides between those of which the words hold alike."""
    told: int = 1
    """How many parts of a key the words are about."""


def tokens_per_second(device: Device, token_bytes: int) -> int | None:
    """Estimate how many tokens a device generates per second for one request; None when its speed is not known."""
    if device.bandwidth is None or token_bytes <= 0:
        return None
    return device.bandwidth * ATTAINED // (100 * token_bytes)


def _speed(one: Judged) -> int:
    return one.device.bandwidth or 0


def _total(one: Judged) -> int:
    return one.device.total or 0


def most_memory(_: Sequence[Judged], __: Request) -> Ranking:
    """Take the largest device, then the one with most room left."""
    return Ranking(lambda one: (-_total(one), -one.available), "most memory", "most room left")


def best_fit(_: Sequence[Judged], __: Request) -> Ranking:
    """Take the device where least is left, then the faster one."""
    return Ranking(lambda one: (one.available, -_speed(one)), "least room left over", "the faster one")


def fastest(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the fastest device, in steps of 5 % of the fastest, then the tightest; those of unknown speed last.

    Where no device's speed is known, the largest.
    """
    top = max((_speed(one) for one in fitting), default=0)
    if not top:
        return most_memory(fitting, request)

    def key(one: Judged) -> Key:
        return ((top - _speed(one)) * 100 // (top * SPEED_CLASS), one.available)

    return Ranking(key, "fastest", "least room left over")


def just_fast_enough(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the smallest device that reaches the wanted speed, then the tightest; the fastest where none reaches it.

    Where no device's speed is known, the largest.
    """
    if not any(_speed(one) for one in fitting):
        return most_memory(fitting, request)
    wanted = request.min_tokens_per_second or 0

    def reaches(one: Judged) -> bool:
        return (tokens_per_second(one.device, request.token_bytes) or 0) >= wanted

    def key(one: Judged) -> Key:
        return (0, _total(one), one.available) if reaches(one) else (1, -_speed(one), one.available)

    if any(reaches(one) for one in fitting):
        return Ranking(key, f"smallest that reaches {wanted} tokens/s", "least room left over", 2)
    return Ranking(key, f"fastest, though none is known to reach {wanted} tokens/s,", "least room left over", 2)


def spread(_: Sequence[Judged], request: Request) -> Ranking:
    """Take the device that keeps the largest share of its memory, then the one with fewest servers, then in turn."""

    def key(one: Judged) -> Key:
        share = 1000 * (one.available - one.need) // max(1, _total(one))
        return (-share, len(one.device.claims), turn(crc32(request.seed.encode()), one.device.gpu))

    return Ranking(key, "largest share of memory left", "fewest servers, then in turn")


def auto(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the smallest of the fast ones, then the tightest; by wanted speed if one is given.

    Where no device's speed is known, the largest. Where only some are known, those of unknown speed come last.
    """
    top = max((_speed(one) for one in fitting), default=0)
    if not top:
        return most_memory(fitting, request)
    if request.min_tokens_per_second is not None:
        return just_fast_enough(fitting, request)
    fast = [one for one in fitting if _is_fast(one, top)]

    def key(one: Judged) -> Key:
        return (0, _total(one), one.available) if _is_fast(one, top) else (1, -_speed(one), -_total(one))

    words = "fastest" if len(fast) == 1 else f"smallest of the {len(fast)} fastest"
    return Ranking(key, words, "least room left over", 2)


def _is_fast(one: Judged, top: int) -> bool:
    return _speed(one) * 100 >= top * (100 - NEAR_FASTEST)


POLICIES: Mapping[Policy, Callable[[Sequence[Judged], Request], Ranking]] = {
    Policy.AUTO: auto,
    Policy.MOST_MEMORY: most_memory,
    Policy.BEST_FIT: best_fit,
    Policy.FASTEST: fastest,
    Policy.JUST_FAST_ENOUGH: just_fast_enough,
    Policy.SPREAD: spread,
}


def _known(judged: tuple[Judged, ...]) -> Callable[[], tuple[Judged, ...]]:
    return lambda: judged
