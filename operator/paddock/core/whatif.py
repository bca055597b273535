"""What would have to be otherwise for a replica to get a device: each answer is computed by asking again."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated
from paddock.api.vocabulary import Verdict
from paddock.core.fleet import Fleet
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import human
from paddock.core.request import Request

MOST_ANSWERS = 3
"""Deployments whose end is offered."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change, and the GPU object that the replica would then get."""

    change: str
    gpu: str
    request: Request
    """The request with the change."""
    fleet: Fleet
    """The fleet with the change."""


def what_ifs(request: Request, fleet: Fleet, refusal: Unplaceable) -> tuple[WhatIf, ...]:
    """Give single changes by which a refused replica would get a device: of its wishes, then of what others have."""
    return (*_wishes(request, fleet), *_ends(request, fleet, refusal))


def _wishes(request: Request, fleet: Fleet) -> Iterator[WhatIf]:
    changed = [
        ("without placement.devices", bool(request.devices), replace(request, devices=())),
        ("without placement.selector", request.selector is not None, replace(request, selector=None)),
        ("without placement.nodeSelector", bool(request.node_selector), replace(request, node_selector={})),
        (
            "with allowIntegrated Always",
            request.allow_integrated is AllowIntegrated.NEVER
            and any(device.type is DeviceType.INTEGRATED for device in fleet.devices),
            replace(request, allow_integrated=AllowIntegrated.ALWAYS),
        ),
        ("without its PlacementPolicies", bool(request.rules), replace(request, rules=())),
    ]
    for words, matters, other in changed:
        gpu = _gpu(other, fleet) if matters else None
        if gpu is not None:
            yield WhatIf(words, gpu, other, fleet)


def _ends(request: Request, fleet: Fleet, refusal: Unplaceable) -> Iterator[WhatIf]:
    """Offer the end of single deployments, those that hold least first."""
    pods: dict[str, set[str]] = defaultdict(set)
    held: dict[str, int] = defaultdict(int)
    near = {one.device.gpu for one in refusal.judged if one.verdict in (Verdict.NO_ROOM, Verdict.OVER_QUOTA)}
    for device in fleet.devices:
        for claim in device.claims:
            pods[claim.deployment].add(claim.pod)
            held[claim.deployment] += claim.bytes if device.gpu in near else 0
    offered = 0
    others = [one for one in pods if held[one] and not pods[one] & request.siblings]
    for name in sorted(others, key=lambda one: (held[one], one)):
        without = fleet.without(pods[name])
        gpu = _gpu(request, without)
        if gpu is not None:
            yield WhatIf(f"without {name} ({human(held[name])})", gpu, request, without)
            offered += 1
        if offered == MOST_ANSWERS:
            return


def _gpu(request: Request, fleet: Fleet) -> str | None:
    found = place(request, fleet)
    return found.device.gpu if isinstance(found, Placement) and found.device is not None else None
