"""What a fleet knows about itself so that nobody has to go through all its devices: kept up to date change by change.

Nothing here is a fact of its own: all follows from the devices, and two fleets of the same devices answer alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from paddock.core.buckets import Buckets
from paddock.core.view import Change, Classes, Member, Places, Sight, View, changed, kind_of, sort

if TYPE_CHECKING:
    from paddock.core.fleet import Device, Node

MOST_VIEWS = 8
"""Kinds of requests for which classes are kept."""
MOST_CHANGES = 32
"""Changes of devices that a view is behind at most; one that nobody has asked for so long is dropped."""
Names = tuple[str, ...]


Pair = tuple["Device | None", "Device | None"]
"""A device as it was and as it is; None where it was or is not there."""


@dataclass(frozen=True, slots=True)
class Books:
    """What is summed up over all devices."""

    pods: Buckets[Names] = field(default_factory=Buckets)
    """The devices on which each pod (namespace/name) has a claim."""
    at_node: Buckets[Names] = field(default_factory=Buckets)
    """The devices of each node."""
    host_claims: Mapping[str, int] = field(default_factory=dict)
    """Bytes of host memory that servers with a device have, by node; of a device in host memory its own as well."""
    reserved: Mapping[str, int] = field(default_factory=dict)
    """Bytes reserved on devices, by namespace."""

    def changed(self, pairs: Iterable[Pair]) -> "Books":
        """Give the books after devices have changed."""
        pods, at_node = _Names(self.pods), _Names(self.at_node)
        hosts, reserved = defaultdict(int, self.host_claims), defaultdict(int, self.reserved)
        for pair in pairs:
            for device, sign in zip(pair, (-1, 1), strict=True):
                if device is None:
                    continue
                at_node.count(device.node, device.gpu, sign)
                for claim in device.claims:
                    pods.count(claim.pod, device.gpu, sign)
                    hosts[device.node] += sign * (claim.host_bytes + (claim.bytes if device.in_host_memory else 0))
                    reserved[claim.deployment.partition("/")[0]] += sign * claim.bytes
        return Books(pods.close(), at_node.close(), dict(hosts), dict(reserved))


class _Names:
    """Changes of names by key."""

    def __init__(self, old: Buckets[Names]) -> None:
        self._old, self._new = old, dict[str, Names | None]()

    def count(self, key: str, name: str, sign: int) -> None:
        """Add a name, or take it off as often as it was added."""
        known = (self._new[key] if key in self._new else self._old.get(key)) or ()
        if sign > 0:
            self._new[key] = (*known, name)
        else:
            at = known.index(name)
            self._new[key] = (*known[:at], *known[at + 1 :]) or None

    def close(self) -> Buckets[Names]:
        return self._old.changed(self._new)


@dataclass(slots=True)
class Index:
    """An index over one set of devices. Nothing in it changes but what is found on first use."""

    nodes: Mapping[str, "Node"]
    reserve: int
    where: Mapping[str, int]
    """Position of each device."""
    families: Classes
    """Devices that are alike wherever they are."""
    books: Books
    host_limits: Mapping[str, int] | None = None
    """Host memory that models may have, by node where it is limited; put here by the fleet on first use."""
    uuids: Mapping[str, Names] | None = None
    """Devices by UUID in lower case."""
    views: dict[Sight, tuple[View, tuple[Change, ...]]] = field(default_factory=dict)
    """Classes, and the changes that they are behind; the one asked for last is the last."""
    places: Places = field(default_factory=Places)
    """Shared with the indexes that this one was made from."""

    @classmethod
    def of(cls, devices: Sequence["Device"], nodes: Mapping[str, "Node"], reserve: int) -> "Index":
        """Go through all devices, once."""
        families = sort((_member(device, reserve) for device in devices), kind_of)
        return cls(nodes, reserve, positions(devices), families, Books().changed((None, one) for one in devices))

    # -- reading -------------------------------------------------------------------------------------------------

    def holding(self, pods: Iterable[str]) -> set[str]:
        """Give the devices on which these pods (namespace/name) have a claim."""
        return {gpu for pod in pods for gpu in self.books.pods.get(pod) or ()}

    def at_node(self, node: str) -> Names:
        """Give the devices of a node."""
        return self.books.at_node.get(node) or ()

    def of_uuid(self, uuid: str, devices: Iterable["Device"]) -> Names:
        """Give the devices that have a UUID, upper and lower case alike; `devices` are the indexed ones."""
        if self.uuids is None:
            found: dict[str, Names] = {}
            for device in devices:
                if device.uuid is not None:
                    found[device.uuid.lower()] = (*found.get(device.uuid.lower(), ()), device.gpu)
            self.uuids = found
        return self.uuids.get(uuid.lower(), ())

    def view(self, sight: Sight) -> View:
        """Give the devices in the classes of a sight."""
        known = self.views.pop(sight, None)
        if known is None:
            view = View.of(sight, self.nodes, self.families, self.places)
        else:
            view = known[0].changed(known[1]) if known[1] else known[0]
        self.views[sight] = (view, ())
        if len(self.views) > MOST_VIEWS:
            del self.views[next(iter(self.views))]
        return view

    # -- changing ------------------------------------------------------------------------------------------------

    def changed(self, pairs: Sequence[Pair], where: Mapping[str, int]) -> "Index":
        """Give the index after devices have changed; `where` are the positions then."""
        changes = [
            (
                None if before is None else _member(before, self.reserve),
                None if after is None else _member(after, self.reserve),
            )
            for before, after in pairs
        ]
        return replace(
            self,
            where=where,
            families=changed(self.families, changes, kind_of),
            books=self.books.changed(pairs),
            uuids=self.uuids
            if all(before and after and before.uuid == after.uuid for before, after in pairs)
            else None,
            views={
                sight: (view, (*late, *changes))
                for sight, (view, late) in self.views.items()
                if len(late) + len(changes) <= MOST_CHANGES
            },
        )

    def on_nodes(self, nodes: Mapping[str, "Node"]) -> "Index":
        """Give the index of the same devices on changed nodes."""
        return replace(self, nodes=nodes, host_limits=None, views={})


def _member(device: "Device", reserve: int) -> Member:
    return Member(device.available(reserve), device.gpu, device)


def positions(devices: Iterable["Device"]) -> Mapping[str, int]:
    """Give the position of each device."""
    return {device.gpu: at for at, device in enumerate(devices)}
