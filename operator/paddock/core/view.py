"""The devices of a fleet in classes: alike in everything that one kind of request can see, except in what is left.

Filters say the same of all devices of a class, so they are asked once for it. What is left differs, so each class is in
the order of that, and a search finds where the devices begin that have enough.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paddock.core.fleet import Device, Node


FEW = 4
"""Kinds of nodes."""


class Member(NamedTuple):
    """A device of a class. Compares by what is left, then by name."""

    available: int
    """Bytes that one more model may have."""
    gpu: str
    device: "Device"


Members = tuple[Member, ...]
"""Sorted, never empty."""
Classes = Mapping[Hashable, Members]
Change = tuple[Member | None, Member | None]
"""What a device was and what it is; None where it was or is not there."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What requests of one kind see beside what every request sees."""

    node_labels: frozenset[str] = frozenset()
    """Keys of the labels that they ask for."""
    gpu_labels: frozenset[str] = frozenset()
    pci_ids: bool = False
    file_nodes: frozenset[str] | None = None
    volume_nodes: frozenset[str] | None = None
    near_nodes: frozenset[str] | None = None


def kind_of(member: Member) -> Hashable:
    """Give what every request sees of a device, wherever it is."""
    device = member.device
    return (
        device.backend,
        device.type,
        device.description,
        device.total,
        device.bandwidth,
        device.compute_capability,
        device.ready or device.why_not,
        device.ambiguous,
        device.pinnable,
        device.binder,
        device.plugin is not None and (device.plugin.registered, device.plugin.hands),
        device.offer is not None,
        device.lent,
        device.holding is not None and (device.holding.missing, device.holding.why),
        None if device.counted is None else device.counted.shown,
        device.budget,
        device.reserve,
        device.more,
    )


def sort(members: Iterable[Member], key: Callable[[Member], Hashable]) -> Classes:
    """Divide devices into classes."""
    out: dict[Hashable, list[Member]] = defaultdict(list)
    for member in sorted(members):
        out[key(member)].append(member)
    return {name: tuple(part) for name, part in out.items()}


def changed(classes: Classes, changes: Iterable[Change], key: Callable[[Member], Hashable]) -> Classes:
    """Give the classes after some devices have changed; only theirs are copied."""
    touched: dict[Hashable, list[Member]] = {}

    def members(member: Member) -> list[Member]:
        name = key(member)
        if name not in touched:
            touched[name] = list(classes.get(name, ()))
        return touched[name]

    for before, after in changes:
        if before is not None:
            there = members(before)
            del there[bisect_left(there, before)]
        if after is not None:
            insort(members(after), after)
    out = {**classes, **{name: tuple(part) for name, part in touched.items()}}
    for name, part in touched.items():
        if not part:
            del out[name]
    return out


def tightest(members: Members) -> Members:
    """Give the two with least left, of equals the first by name."""
    return members[:2]


def roomiest(members: Members) -> list[Member]:
    """Give the two with most left, of equals the first by name."""
    at = bisect_left(members, (members[-1].available,))
    found = list(members[at : at + 2])
    if len(found) == 1 and at:
        found.append(members[bisect_left(members, (members[at - 1].available,))])
    return found


def first(members: Iterable[Member]) -> Member:
    """Give the first by name."""
    return min(members, key=_name)


def _name(one: Member) -> str:
    return one.gpu


class _Kinds(dict[str, int]):
    """A number for what a sight shows of each node, equal for those that look alike."""

    def __init__(self, sight: Sight, nodes: Mapping[str, "Node"], looks: Sequence[int]) -> None:
        columns: list[Sequence[Hashable]] = [looks]
        columns += [[one.labels.get(key) for one in nodes.values()] for key in sight.node_labels]
        sets = (sight.file_nodes, sight.volume_nodes, sight.near_nodes)
        columns += [[name in some for name in nodes] for some in sets if some is not None]
        numbers: dict[Hashable, int] = {}
        seen = zip(*columns, strict=True)
        super().__init__(zip(nodes, [numbers.setdefault(one, len(numbers)) for one in seen], strict=True))

    def __missing__(self, name: str) -> int:
        return -1  # No such node: one looks like another.


class Places:
    """The nodes of devices, class by class, remembered as long as a class is the same; and how nodes look.

    To ask ten thousand devices where they are takes longer than all else that a new view needs.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Members, list[str]]] = {}
        self._looks: tuple[Mapping[str, Node], list[int]] = ({}, [])

    def of(self, name: Hashable, members: Members) -> list[str]:
        """Give the node of each device of a class."""
        known = self._known.get(name)
        if known is None or known[0] is not members:
            known = self._known[name] = (members, [one.device.node for one in members])
        return known[1]

    def looks(self, nodes: Mapping[str, "Node"]) -> Sequence[int]:
        """Give a number for what every request sees of each node, equal for those that look alike."""
        if self._looks[0] is not nodes:
            numbers: dict[Hashable, int] = {}
            seen = ((one.ready, one.schedulable, one.taints, one.shares) for one in nodes.values())
            self._looks = (nodes, [numbers.setdefault(one, len(numbers)) for one in seen])
        return self._looks[1]

    def forget(self, but: Classes) -> None:
        """Forget the classes that are gone, once they are many."""
        if len(self._known) > 2 * len(but) + FEW:
            self._known = {name: known for name, known in self._known.items() if but.get(name) is known[0]}


@dataclass(frozen=True, slots=True)
class View:
    """The classes for one sight."""

    sight: Sight
    classes: Classes
    kinds: _Kinds

    @classmethod
    def of(cls, sight: Sight, nodes: Mapping[str, "Node"], families: Classes, places: Places) -> "View":
        """Divide families, whose devices are alike wherever they are, by where they are."""
        kinds, classes = _Kinds(sight, nodes, places.looks(nodes)), dict[Hashable, Members]()
        places.forget(families)
        for family, members in families.items():
            for kind, part in _divided(members, list(map(kinds.__getitem__, places.of(family, members)))):
                classes[family, kind, None] = part
        view = cls(sight, classes, kinds)
        if not sight.gpu_labels and not sight.pci_ids:
            return view
        return replace(view, classes=sort((one for members in classes.values() for one in members), view._key))

    def changed(self, changes: Iterable[Change]) -> "View":
        """Give the view after some devices have changed."""
        return replace(self, classes=changed(self.classes, changes, self._key))

    def _key(self, member: Member) -> Hashable:
        sight, device = self.sight, member.device
        seen = None
        if sight.gpu_labels or sight.pci_ids:
            labels = tuple(device.labels.get(key) for key in sight.gpu_labels)
            seen = (labels, device.pci_id if sight.pci_ids else None)
        return (kind_of(member), self.kinds[device.node], seen)


def _divided(members: Members, kinds: Sequence[int]) -> Iterable[tuple[int, Members]]:
    """Divide devices by the kinds of their nodes; the order stays."""
    found = set(kinds)
    if len(found) == 1:
        return [(kinds[0], members)]
    if found == {0, 1}:
        return [(1, tuple(compress(members, kinds))), (0, tuple(compress(members, map(not_, kinds))))]
    if len(found) <= FEW:
        # To go through them once for each kind is faster than to ask for a list for each device.
        return [(kind, tuple(compress(members, map(kind.__eq__, kinds)))) for kind in found]
    parts: dict[int, list[Member]] = defaultdict(list)
    for kind, member in zip(kinds, members, strict=True):
        parts[kind].append(member)
    return [(kind, tuple(part)) for kind, part in parts.items()]
