"""Who waits for a device, in which order, and what that means for those behind.

The order is priority, then age. Whoever is looked at is placed as if all who wait ahead and fit now had their devices
already, so that it takes nothing from them, whatever the order in which they are looked at. One that does not fit holds
nobody up: a small model may pass a large one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paddock.core.deployment import Deployment
from paddock.core.fleet import Claim, Fleet
from paddock.core.placement import Placement, place
from paddock.core.request import Request

MOST_NAMED = 3
"""Deployments ahead that a message names."""
EXACT = 10
"""Positions up to this one are told exactly; further ones in steps, so that a long queue is not written anew each time
that one leaves it."""
Order = tuple[int, str, str]


def order_of(deployment: Deployment) -> Order:
    """Give what the queue is sorted by: the highest priority, then the oldest, then the name."""
    priority = deployment.spec.priority if deployment.spec is not None else 0
    return (-priority, deployment.created, deployment.key)


@dataclass(frozen=True, slots=True)
class Queued:
    """A deployment that waits, and what its replicas ask for, by pod (namespace/name)."""

    order: Order
    requests: Mapping[str, Request] = field(default_factory=dict)
    told: int = 0
    """The position that its status tells."""

    @property
    def deployment(self) -> str:
        """namespace/name."""
        return self.order[2]


def ahead_of(queue: Iterable[Queued], order: Order) -> list[Queued]:
    """Give who comes before, the first one first."""
    return sorted((one for one in queue if one.order < order and one.requests), key=lambda one: one.order)


def kept_for(ahead: Iterable[Queued], fleet: Fleet, promised: Collection[str] = ()) -> tuple[Fleet, list[str]]:
    """Give the fleet as if those ahead who fit now had their devices, and their names (namespace/name).

    Pods in `promised` have a claim already that waits until others have left; that does not keep them from going
    elsewhere.
    """
    # Most who wait need more than there is anywhere; no device need be judged for them.
    most = fleet.most_available
    names: list[str] = []
    for one in ahead:
        for pod, request in sorted(one.requests.items()):
            if request.least_need > most and pod not in promised:
                continue
            beside = fleet.without((pod,)) if pod in promised else fleet
            found = place(request, beside)
            if isinstance(found, Placement) and found.device is not None:
                fleet = beside
                claim = Claim(pod, one.deployment, found.need, host_bytes=request.host_need)
                fleet = fleet.with_claim(found.device.gpu, claim)
                most = fleet.most_available
                names += [] if one.deployment in names else [one.deployment]
    return fleet, names


def position(ahead: int) -> int:
    """Give the position of one that has so many ahead of it, from 1; a far one rounded up to one digit."""
    place_ = ahead + 1
    if place_ <= EXACT:
        return place_
    step: int = 10 ** (len(str(place_)) - 1)
    return -(-place_ // step) * step


def several(names: Sequence[str]) -> str:
    """Give the names of a few that are ahead, and how many there are beside them, as the begin of a sentence."""
    shown = ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"
