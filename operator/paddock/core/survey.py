"""What a whole fleet is for one request, class by class instead of device by device.

Says the same as `filters.judge` of each device: the standing filters are asked for one device of a class, and a search
in what is left tells how many have room.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from paddock.api.modeldeployment import DeviceRef, ReplicaSpread
from paddock.api.selector import DeviceSelector
from paddock.api.vocabulary import Verdict
from paddock.core.filters import Judged, judge, names, standing_refusal, sums_of
from paddock.core.fleet import Device, Fleet
from paddock.core.request import Request
from paddock.core.rules import Allowance
from paddock.core.view import Member, Members, Sight, first, roomiest

ZONE = "topology.kubernetes.io/zone"
"""Label of a node."""


class Part(NamedTuple):
    """Devices of one class of which the same was found."""

    verdict: Verdict
    members: Members
    need: int
    """Bytes on each of them."""
    why: str = ""
    """With a verdict that stands: what refuses them."""


class Survey:
    """What was found about devices."""

    def __init__(self, request: Request, fleet: Fleet, classes: Iterable[Members]) -> None:
        """Look at classes of devices, each alike in what the request can see."""
        self._request, self._fleet, self._sums = request, fleet, sums_of(request, fleet)
        self._full = {node for node, left in self._sums.hosts.items() if request.host_need > left}
        self.parts: list[Part] = []
        """Every device is in one of them; none is empty."""
        for members in classes:
            self._divide(members)

    def _divide(self, members: Members) -> None:
        request, fleet, one = self._request, self._fleet, members[0].device
        need = request.need_on(one)
        refusal = standing_refusal(one, request, fleet, self._sums)
        if refusal is not None:
            self._add(refusal[0], members, need, refusal[1])
        elif need > one.capacity(fleet.reserve):
            self._add(Verdict.MODEL_TOO_BIG, members, need)
        else:
            enough = bisect_left(members, (need,))
            self._add(Verdict.NO_ROOM, members[:enough], need)
            self._beside(members[enough:], need)

    def _beside(self, members: Members, need: int) -> None:
        """Look at what else than the device's own memory is needed."""
        full = self._full_for(members)
        if full and members:
            self._add(Verdict.HOST_MEMORY, tuple(one for one in members if one.device.node in full), need)
            members = tuple(one for one in members if one.device.node not in full)
        if self._request.rules and members:
            allowed = self._allowance(members[0], need)
            if not allowed.unlimited:
                over = {one.gpu for one in members if allowed.missing(one.device)}
                self._add(Verdict.OVER_QUOTA, tuple(one for one in members if one.gpu in over), need)
                members = tuple(one for one in members if one.gpu not in over)
        self._add(Verdict.FITS, members, need)

    def _full_for(self, members: Members) -> set[str]:
        """Give the nodes that have too little host memory for these devices of a class."""
        if not members or not members[0].device.in_host_memory:
            return self._full
        wanted = self._request.host_need_on(members[0].device)
        return {node for node in {one.device.node for one in members} if wanted > self._sums.pool_of(node)}

    def _allowance(self, member: Member, need: int) -> Allowance:
        node = self._fleet.nodes.get(member.device.node)
        return Allowance(self._request.rules, member.device, node, need, self._sums.quotas)

    def _add(self, verdict: Verdict, members: Members, need: int, why: str = "") -> None:
        if members:
            self.parts.append(Part(verdict, members, need, why))

    def of(self, *verdicts: Verdict) -> list[Part]:
        """Give the parts with one of these verdicts."""
        return [part for part in self.parts if part.verdict in verdicts]

    def count(self) -> Counter[Verdict]:
        """Give the number of devices by verdict."""
        out: Counter[Verdict] = Counter()
        for part in self.parts:
            out[part.verdict] += len(part.members)
        return out

    def nearest(self, verdict: Verdict) -> Judged | None:
        """Of the devices that lack memory in this way, give the one that lacks least, the first by name of equals."""
        parts = self.of(verdict)
        if not parts:
            return None
        missing = [self._missing(part) for part in parts]
        there = [self._where(part, least) for part, least in zip(parts, missing, strict=True) if least == min(missing)]
        return judge(first(there).device, self._request, self._fleet, self._sums)

    def _missing(self, part: Part) -> int:
        """Give the bytes that are missing where least are."""
        members = part.members
        match part.verdict:
            case Verdict.NO_ROOM:
                return part.need - members[-1].available
            case Verdict.HOST_MEMORY:
                return self._request.host_need_on(members[0].device) - max(
                    self._sums.host_left(one.device) for one in members
                )
            case Verdict.OVER_QUOTA:
                allowed = self._allowance(members[0], part.need)
                return min(allowed.missing(one.device) for one in members)
            case _:
                return part.need - members[0].device.capacity(self._fleet.reserve)

    def _where(self, part: Part, least: int) -> Member:
        """Give the first device by name where so much is missing."""
        members = part.members
        match part.verdict:
            case Verdict.NO_ROOM:
                return roomiest(members)[0]
            case Verdict.HOST_MEMORY:
                left = self._request.host_need_on(members[0].device) - least
                return first(one for one in members if self._sums.host_left(one.device) == left)
            case Verdict.OVER_QUOTA:
                allowed = self._allowance(members[0], part.need)
                return first(one for one in members if allowed.missing(one.device) == least)
            case _:
                return first(members)


def survey(request: Request, fleet: Fleet) -> Survey:
    """Look at all devices."""
    return Survey(request, fleet, fleet.index.view(sight_of(request, fleet)).classes.values())


def survey_of(request: Request, fleet: Fleet, devices: Iterable[Device]) -> Survey:
    """Look at a few devices, each for itself."""
    return Survey(request, fleet, [(Member(one.available(fleet.reserve), one.gpu, one),) for one in devices])


def named(refs: Iterable[DeviceRef], fleet: Fleet) -> list[Device]:
    """Give the devices that one of these references means, in the order of the fleet."""
    found: set[str] = set()
    for ref in refs:
        if ref.uuid is not None:
            found.update(fleet.index.of_uuid(ref.uuid, fleet.devices))
        elif ref.node is not None:
            found.update(one.gpu for one in fleet.at(fleet.index.at_node(ref.node)) if names(ref, one))
    return fleet.at(found)


def sight_of(request: Request, fleet: Fleet) -> Sight:
    """Give what a request sees of devices and nodes beside what every request sees."""
    selectors = list(_selectors(request))
    labels = {*request.node_selector, *(key for one in selectors for key in one.node_labels)}
    if request.siblings and request.replica_spread is ReplicaSpread.ZONE:
        labels.add(ZONE)
    return Sight(
        node_labels=frozenset(labels),
        gpu_labels=frozenset(key for one in selectors for key in one.gpu_labels),
        pci_ids=any(one.pci_ids for one in selectors),
        file_nodes=_some(request.file_nodes, fleet),
        volume_nodes=_some(request.volume_nodes, fleet),
        near_nodes=_some(request.near_nodes or None, fleet),
    )


def _some(nodes: frozenset[str] | None, fleet: Fleet) -> frozenset[str] | None:
    """Give None for all nodes as well, so that models which are everywhere share their classes."""
    return None if nodes is None or nodes.issuperset(fleet.nodes) else nodes


def _selectors(request: Request) -> Iterable[DeviceSelector]:
    if request.selector is not None:
        yield request.selector
    for preference in request.preferences:
        yield preference.selector
    for rule in request.rules:
        if rule.gpus is not None:
            yield rule.gpus
        for selector, _ in rule.budgets:
            yield selector
