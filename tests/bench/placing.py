"""Measures the pure core: one decision, and one search for room, on fleets of several sizes, without a cluster."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from paddock.core.fleet import Claim
from paddock.core.moves import Limits, Tenant, rearrange
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from support.builders import GIB, MIB, claim, device, fleet

if TYPE_CHECKING:
    from bench.figures import Figures
    from paddock.core.fleet import Device, Fleet

DECISIONS, SEARCHES = 200, 50


def measure_placement(figures: Figures) -> None:
    """Measure decisions for models of 1 to 40 GiB."""
    for count in (100, 1_000, 10_000):
        where = some_fleet(count)
        took = sorted(_one(where, number % 40 + 1) for number in range(DECISIONS))
        figures.put(f"place_p50_{count}", took[len(took) // 2] * 1000)
        figures.put(f"place_p99_{count}", took[len(took) * 99 // 100] * 1000)


def _one(where: Fleet, gib: int) -> float:
    request = Request(need=gib * GIB, backends=frozenset({"CUDA"}), runtime_classes={"CUDA": True})
    start = time.perf_counter()
    place(request, where)
    return time.perf_counter() - start


def measure_moves(figures: Figures) -> None:
    """Measure searches for models of 13 to 96 GiB for which there is no room."""
    for count in (100, 1_000, 10_000):
        where, tenants = full_fleet(count)
        for name, limits in (("move", Limits()), ("evict", Limits(moves=0, evictions=8))):
            took = sorted(_search(where, tenants, limits, 13 + number % 84) for number in range(SEARCHES))
            figures.put(f"{name}_p99_{count}", took[len(took) * 99 // 100] * 1000)


def _search(where: Fleet, tenants: list[Tenant], limits: Limits, gib: int) -> float:
    request = Request(need=gib * GIB, priority=2, backends=frozenset({"CUDA"}), runtime_classes={"CUDA": True})
    assert not isinstance(place(request, where), Placement)
    start = time.perf_counter()
    rearrange(request, where, tenants, limits)
    return time.perf_counter() - start


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


def some_fleet(count: int) -> Fleet:
    """Give a fleet of mixed cards, eight on a node, each with up to three servers; the same one each time."""
    chance = random.Random(1)  # noqa: S311 no secret

    def card(number: int) -> Device:
        claims = [
            claim(f"default/m{number}-{server}", chance.randint(1, 8) * 256 * MIB)
            for server in range(chance.randint(0, 3))
        ]
        return device(
            f"gpu-{number:05d}",
            node=f"node-{number // 8:04d}",
            total=chance.choice([12, 24, 48, 96]) * GIB,
            free=None,
            bandwidth=chance.choice([200, 400, 900, 1800]) * 10**9,
            claims=tuple(claims),
        )

    return fleet(*(card(number) for number in range(count)))
