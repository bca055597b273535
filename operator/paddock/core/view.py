"""The devices of a fleet in classes: alike in everything that one kind of request can see, except in what is left.

Filters say the same of all devices of a class, so they are asked once for it. What is left differs, so each class is in
the order of that, and a search finds where the devices begin that have enough.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paddock.core.fleet import Device, Node


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
    """A number for what a sight shows of each node, equal for those that look alike; worked out as nodes are met."""

    def __init__(self, sight: Sight, nodes: Mapping[str, "Node"]) -> None:
        super().__init__()
        self._sight, self._nodes = sight, nodes
        self._numbers: dict[Hashable, int] = {}

    def __missing__(self, name: str) -> int:
        self[name] = number = self._numbers.setdefault(self._look(name), len(self._numbers))
        return number

    def _look(self, name: str) -> Hashable:
        sight, node = self._sight, self._nodes.get(name)
        if node is None:
            return None
        return (
            node.ready,
            node.schedulable,
            node.taints,
            node.shares,
            tuple(node.labels.get(key) for key in sight.node_labels),
            sight.file_nodes is None or name in sight.file_nodes,
            sight.volume_nodes is None or name in sight.volume_nodes,
            sight.near_nodes is None or name in sight.near_nodes,
        )


@dataclass(frozen=True, slots=True)
class View:
    """The classes for one sight."""

    sight: Sight
    classes: Classes
    kinds: _Kinds

    @classmethod
    def of(cls, sight: Sight, nodes: Mapping[str, "Node"], families: Classes) -> "View":
        """Divide families, whose devices are alike wherever they are, by where they are."""
        kinds, classes = _Kinds(sight, nodes), dict[Hashable, Members]()
        for family, members in families.items():
            parts: dict[Hashable, list[Member]] = defaultdict(list)
            for member in members:
                parts[kinds[member.device.node]].append(member)
            for kind, part in parts.items():
                classes[family, kind, None] = tuple(part)
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
