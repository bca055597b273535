"""What would have to be otherwise for a replica to get a device: each answer is computed by asking again."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, Policy
from paddock.api.vocabulary import Verdict
from paddock.core.fleet import Claim, Fleet
from paddock.core.moves import MOST_MOVES, Limits, Rearrangement, Tenant, rearrange
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import human
from paddock.core.request import Request

MOST_ANSWERS = 3
"""Deployments whose end is offered."""
MOST_VICTIMS = 8
"""Replicas whose eviction is offered together."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change, and the GPU object that the replica would then get."""

    change: str
    gpu: str
    request: Request
    """The request with the change."""
    fleet: Fleet
    """The fleet with the change."""


def what_ifs(
    request: Request, fleet: Fleet, refusal: Unplaceable, tenants: Iterable[Tenant] = (), waiting: str = ""
) -> tuple[WhatIf, ...]:
    """Give changes by which a refused replica would get a device: of its wishes, then of what others have.

    `tenants` are those who may be thought of as moved and evicted, `waiting` is the deployment (namespace/name) that
    asks.
    """
    others = list(tenants)
    rearranged = _rearranged(request, fleet, others, waiting)
    return (*_wishes(request, fleet), *rearranged, *_ends(request, fleet, refusal))


def other_policies(request: Request, fleet: Fleet, found: Placement) -> tuple[WhatIf, ...]:
    """Give the policies with which a replica that was placed would get another device, and which."""
    taken = found.device.gpu if found.device is not None else None
    out = []
    for policy in Policy:
        other = replace(request, policy=policy)
        gpu = _gpu(other, fleet) if taken is not None and policy is not request.policy else None
        if gpu is not None and gpu != taken:
            out.append(WhatIf(f"with policy {policy}", gpu, other, fleet))
    return tuple(out)


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


def _rearranged(request: Request, fleet: Fleet, tenants: list[Tenant], waiting: str) -> Iterator[WhatIf]:
    """Offer the best move of others, and the best eviction, each if there is one."""
    for limits in (Limits(moves=MOST_MOVES), Limits(moves=0, evictions=MOST_VICTIMS)):
        found = rearrange(request, fleet, tenants, limits, waiting) if tenants else None
        gpu = _gpu(request, after := _after(found, fleet)) if found is not None else None
        if found is not None and gpu is not None:
            yield WhatIf(_done(found), gpu, request, after)


def _after(found: Rearrangement, fleet: Fleet) -> Fleet:
    """Give the fleet once all is moved and evicted, before the one that waits has its place."""
    gone = (*found.evictions, *(one.tenant for one in found.moves))
    fleet = fleet.without(one.owner for one in gone)
    for tenant, placement, _ in found.moves:
        if placement.device is not None and tenant.request is not None:
            claim = Claim(tenant.owner, tenant.deployment, placement.need, host_bytes=tenant.request.host_need)
            fleet = fleet.with_claim(placement.device.gpu, claim)
    return fleet


def _done(found: Rearrangement) -> str:
    """Say in the past what is proposed."""
    moved = [
        f"{one.tenant.deployment or one.tenant.owner} ({human(one.tenant.need)}) moved to {one.placement.device.gpu}"
        for one in found.moves
        if one.placement.device is not None
    ]
    ended = [
        f"{one.deployment or one.owner} ({human(one.need)}, priority {one.priority}) evicted" for one in found.evictions
    ]
    return f"with {' and '.join([*moved, *ended])}"


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
