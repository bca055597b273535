"""Measures the pure core: one decision on fleets of several sizes, without a cluster."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from paddock.core.placement import place
from paddock.core.request import Request
from support.builders import GIB, MIB, claim, device, fleet

if TYPE_CHECKING:
    from bench.figures import Figures
    from paddock.core.fleet import Device, Fleet

DECISIONS = 200


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
