"""One of the devices that fit: fewest siblings near, most preferred, discrete first, then the policy, then the name."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, ReplicaSpread
from paddock.core.fleet import Device, Fleet
from paddock.core.policy import POLICIES
from paddock.core.request import Request
from paddock.core.selector import weight_of
from paddock.core.survey import ZONE, Part
from paddock.core.view import Member, Members

BACK = 1_000_000
"""Weight of the device that a sticky replica had last: above all preferences together."""
First = tuple[int, ...]
"""What goes before the policy: siblings near it, how it is preferred, whether it is integrated. Less is better."""


class _Batch(NamedTuple):
    """Devices of one class that are alike before the policy is asked."""

    first: First
    members: Members


def choose(parts: Sequence[Part], request: Request, fleet: Fleet) -> tuple[Member, str]:
    """Pick one device out of parts that fit, and say why."""
    crowds = _Crowds(request, fleet)
    batches = [batch for part in parts for batch in _batches(part.members, request, fleet, crowds)]
    counts: Counter[First] = Counter()
    for batch in batches:
        counts[batch.first] += len(batch.members)
    least, fitting = min(counts), counts.total()
    leaders = [batch.members for batch in batches if batch.first == least]
    speeds: Counter[int] = Counter()
    for members in leaders:
        speeds[members[0].device.bandwidth or 0] += len(members)
    ranking = POLICIES[request.policy](speeds, request)
    contenders = ranking.leading(leaders)
    # Where the policy sees no difference, a node that has the file goes first.
    best, *others = nsmallest(2, contenders, key=lambda one: (*ranking.key(one), _is_far(one, request), one.gpu))
    if fitting == 1:
        return best, "the only device that fits"
    scope = f"{counts[least]} devices that fit"
    if counts[least] < fitting:
        scope = f"{fitting} devices that fit" + _narrowed(counts, least, request)
    policy = f"policy {request.policy}"
    if not others:
        return best, f"the one of {scope} ({policy})"
    why = f"{ranking.words} of {scope} ({policy})"
    mine, next_ = ranking.key(best), ranking.key(others[0])
    if mine[: ranking.told] == next_[: ranking.told]:
        near = not _is_far(best, request) and any(_is_far(members[0], request) for members in leaders)
        first = "one whose node has the model file" if near else "first"
        why += f", {first if mine == next_ else ranking.ties} among equals"
    return best, why


def _is_far(one: Member, request: Request) -> bool:
    return one.device.node not in request.near_nodes


def _batches(members: Members, request: Request, fleet: Fleet, crowds: "_Crowds") -> Iterable[_Batch]:
    """Divide devices of a class by what goes before the policy."""
    one = members[0].device
    liked = weight_of(request.preferences, one, fleet.nodes.get(one.node)) if request.preferences else 0
    integrated = request.allow_integrated is AllowIntegrated.AUTO and one.type is DeviceType.INTEGRATED
    for some in crowds.divide(members):
        back = BACK if some[0].gpu == request.last else 0
        yield _Batch((*crowds.near(some[0].device), -liked - back, int(integrated)), some)


class _Crowds:
    """How many siblings are near a device: on itself, and on its node or in its zone where asked to spread so."""

    def __init__(self, request: Request, fleet: Fleet) -> None:
        self._spread, self._fleet, self._any = request.replica_spread, fleet, bool(request.siblings)
        self._on: Counter[str] = Counter()
        special = {request.last} if request.last is not None else set[str]()
        for device in fleet.at(fleet.index.holding(request.siblings)):
            here = sum(claim.pod in request.siblings for claim in device.claims)
            self._on[device.gpu] = here
            self._on[f"node {device.node}"] += here
            self._on[f"zone {self._zone(device)}"] += here
            alone = self._spread is ReplicaSpread.DEVICE
            special.update((device.gpu,) if alone else fleet.index.at_node(device.node))
        self._special = [
            (one.available(fleet.reserve), one.gpu) for one in fleet.at(special & fleet.index.where.keys())
        ]
        """Those that differ from others of their class: with a sibling on them or on their node, and the last one."""

    def near(self, device: Device) -> tuple[int, ...]:
        """Give the numbers of siblings near a device, what counts most first."""
        if not self._any:
            return ()
        on = self._on
        match self._spread:
            case ReplicaSpread.DEVICE:
                return (on[device.gpu],)
            case ReplicaSpread.NODE:
                return (on[f"node {device.node}"], on[device.gpu])
            case ReplicaSpread.ZONE:
                return (on[f"zone {self._zone(device)}"], on[f"node {device.node}"], on[device.gpu])

    def divide(self, members: Members) -> Iterable[Members]:
        """Divide devices of a class: those that differ from the others, each for itself, and the others."""
        found = [
            at for one in self._special if (at := bisect_left(members, one)) < len(members) and members[at][:2] == one
        ]
        if not found:
            return [members]
        alike = list(members)
        for at in sorted(found, reverse=True):
            del alike[at]
        return [*((members[at],) for at in found), *([tuple(alike)] if alike else [])]

    def _zone(self, device: Device) -> str:
        """Give the zone of a device's node; a node without one is a zone of its own."""
        node = self._fleet.nodes.get(device.node)
        return (node.labels.get(ZONE) if node is not None else None) or f"of {device.node}"


def _narrowed(counts: Mapping[First, int], least: First, request: Request) -> str:
    """Say what narrowed the choice before the policy was asked."""
    parts = []
    if any(key[:-2] != least[:-2] for key in counts):
        where = {ReplicaSpread.DEVICE: "", ReplicaSpread.NODE: " on their node", ReplicaSpread.ZONE: " in their zone"}
        parts.append(f"with the fewest replicas of this deployment{where[request.replica_spread]}")
    if any(key[:-2] == least[:-2] and key[-2] != least[-2] for key in counts):
        back = -least[-2] >= BACK
        parts.append("where it was before (sticky)" if back else f"preferred most (weight {-least[-2]})")
    if any(key[:-1] == least[:-1] and key[-1] != least[-1] for key in counts):
        parts.append("discrete")
    return " " + ", ".join(parts)
