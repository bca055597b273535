"""Measures the pure core: searches for room on full fleets of several sizes, without a cluster. Processor time."""

from __future__ import annotations

import gc
import random
import time
from typing import TYPE_CHECKING

from bench.placing import some_fleet
from paddock.core.fleet import Claim
from paddock.core.moves import Limits, Tenant, rearrange
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from support.builders import GIB, fleet

if TYPE_CHECKING:
    from bench.figures import Figures
    from paddock.core.fleet import Fleet

SEARCHES = 50


def measure_moves(figures: Figures) -> None:
    """Measure searches for models of 13 to 96 GiB for which there is no room."""
    for count in (100, 1_000, 10_000):
        where, tenants = full_fleet(count)
        gc.collect()
        gc.freeze()  # As the operator does with what stays.
        for name, limits in (("move", Limits()), ("evict", Limits(moves=0, evictions=8))):
            took = sorted(_search(where, tenants, limits, 13 + number % 84) for number in range(SEARCHES))
            figures.put(f"{name}_p99_{count}", took[len(took) * 99 // 100] * 1000)
        gc.unfreeze()


def _search(where: Fleet, tenants: list[Tenant], limits: Limits, gib: int) -> float:
    request = Request(need=gib * GIB, priority=2, backends=frozenset({"CUDA"}), runtime_classes={"CUDA": True})
    assert not isinstance(place(request, where), Placement)
    start = time.process_time()
    rearrange(request, where, tenants, limits)
    return time.process_time() - start


def full_fleet(count: int) -> tuple[Fleet, list[Tenant]]:
    """Give the same cards with up to seven servers each, less than 12 GiB left, and who may be disturbed."""
    chance = random.Random(2)  # noqa: S311 no secret
    devices, tenants = [], []
    for card in some_fleet(count).devices:
        left = (card.total or 0) - chance.randint(0, 11) * GIB
        claims: list[Claim] = []
        while left >= GIB:
            most = left // GIB
            size = most if len(claims) == 6 else min(most, chance.choice([1, 2, 3, 4, 6, 8, 10, 16, 20, 32]))
            claims.append(Claim(f"default/{card.gpu}-{len(claims)}", f"default/{card.gpu}", size * GIB))
            left -= size * GIB
        devices.append(card.with_claims(claims))
        tenants += [
            Tenant(
                owner=one.pod,
                device=card.gpu,
                need=one.bytes,
                deployment=one.deployment,
                priority=chance.choice([-1, 0, 1, 3]),
                idle=chance.random() < 0.5,
                movable=chance.random() < 0.8,
                evictable=True,
                request=Request(need=one.bytes),
            )
            for one in claims
        ]
    return fleet(*devices), tenants
