"""Measures the pure core: decisions on fleets of several sizes, without a cluster. `python -m bench.placing` draws it.

Processor time, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.plot import Line, Panel, draw
from paddock.api.modeldeployment import Policy
from paddock.core.index import Index
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from support.builders import GIB, MIB, claim, device, fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.figures import Figures
    from paddock.core.fleet import Device, Fleet

SIZES = (100, 1_000, 10_000)
DRAWN = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "placement-speed.svg"
NEEDS = 100
"""Needs that are asked for with each policy."""
ROOMIEST = 40
"""GiB of the largest of them."""
SERVED = {"backends": frozenset({"CUDA"}), "runtime_classes": {"CUDA": True}}


@dataclass
class Times:
    """Milliseconds of each decision on one fleet, sorted."""

    placed: dict[Policy, list[float]] = field(default_factory=dict)
    """A device is found, by policy."""
    refused: list[float] = field(default_factory=list)
    """None has room, or none is large enough."""
    first: list[float] = field(default_factory=list)
    """The first decision of a kind, for which the devices are divided into classes."""
    changed: list[float] = field(default_factory=list)
    """One GPU gets a claim, and the next decision is made."""
    explained: list[float] = field(default_factory=list)
    """Every GPU's verdict is read."""

    @property
    def every(self) -> list[float]:
        """Those of all policies."""
        return sorted(took for times in self.placed.values() for took in times)


def measure_placement(figures: Figures) -> None:
    """Measure decisions for models of 1 to 40 GiB, refusals and changes."""
    for count in SIZES:
        times = measure(count)
        figures.put(f"place_p50_{count}", at(times.every, 50))
        figures.put(f"place_p99_{count}", at(times.every, 99))
        figures.put(f"refuse_p99_{count}", at(times.refused, 99))
        figures.put(f"place_first_{count}", at(times.first, 99))
        figures.put(f"fleet_change_{count}", at(times.changed, 50))
    figures.put("fleet_memory_10000", memory(some_fleet(SIZES[-1])) / MIB)


def measure(count: int) -> Times:
    """Measure on fleets of so many GPUs."""
    where, full = some_fleet(count), some_fleet(count, full=True)
    small, huge = Request(need=8 * GIB, **SERVED), Request(need=200 * GIB, **SERVED)  # type: ignore[arg-type]
    assert isinstance(place(small, where), Placement)
    assert not isinstance(place(small, full), Placement)
    assert not isinstance(place(huge, where), Placement)
    gc.collect()
    gc.freeze()  # As the operator does with what stays.
    out = Times()
    for policy in Policy:
        asked = [
            Request(need=(number % ROOMIEST + 1) * GIB, policy=policy, seed=f"uid {number}", **SERVED)  # type: ignore[arg-type]
            for number in range(NEEDS)
        ]
        out.placed[policy] = sorted(_took(lambda one=one: place(one, where)) for one in asked)  # type: ignore[misc]
    out.refused = sorted(
        [_took(lambda: place(small, full)) for _ in range(NEEDS)]
        + [_took(lambda: place(huge, where)) for _ in range(NEEDS)]
    )
    nodes = sorted(where.nodes)
    for number in range(20):
        some = frozenset(random.Random(number).sample(nodes, len(nodes) // 2 + 1))  # noqa: S311 no secret
        only = Request(need=8 * GIB, file_nodes=some - {nodes[-1]} or some, **SERVED)  # type: ignore[arg-type]
        out.first.append(_took(lambda only=only: place(only, where)))  # type: ignore[misc]
    out.first.sort()
    out.changed = _changes(where, small)
    gc.unfreeze()
    out.explained = sorted(_took(lambda: place(small, where).judged) for _ in range(3))
    return out


def _changes(where: Fleet, request: Request) -> list[float]:
    """Give one device after the other a claim, and decide after each."""
    out = []
    for number in range(NEEDS):
        gpu = where.devices[number * 7919 % len(where.devices)].gpu
        one = claim(f"default/n{number}-0", 256 * MIB)
        begin = time.process_time_ns()
        where = where.with_claim(gpu, one)
        place(request, where)
        out.append((time.process_time_ns() - begin) / 1e6)
    return sorted(out)


def _took(work: Callable[[], object]) -> float:
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / 1e6


def at(times: Sequence[float], per_cent: int) -> float:
    """Give a percentile of sorted times."""
    return times[min(len(times) - 1, len(times) * per_cent // 100)]


def memory(where: Fleet) -> int:
    """Give the bytes of a fleet's index with one kind of request."""
    tracemalloc.start()
    index = Index.of(where.devices, where.nodes, where.reserve)
    object.__setattr__(where, "_index", index)
    place(Request(need=GIB, **SERVED), where)  # type: ignore[arg-type]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def some_fleet(count: int, *, full: bool = False) -> Fleet:
    """Give a fleet of mixed cards, eight on a node, each with up to three servers; the same one each time.

    On a full one each card has a server that leaves less than 4 GiB.
    """
    chance = random.Random(1)  # noqa: S311 no secret

    def card(number: int) -> Device:
        total = chance.choice([12, 24, 48, 96])
        claims = [
            claim(f"default/m{number}-{server}", chance.randint(1, 8) * 256 * MIB)
            for server in range(chance.randint(0, 3))
        ]
        if full:
            claims = [claim(f"default/m{number}-0", total * GIB - chance.randint(0, 15) * 256 * MIB)]
        return device(
            f"gpu-{number:05d}",
            node=f"node-{number // 8:04d}",
            uuid=f"GPU-{number:05d}",
            total=total * GIB,
            free=None,
            bandwidth=chance.choice([200, 400, 900, 1800]) * 10**9,
            claims=tuple(claims),
        )

    return fleet(*(card(number) for number in range(count)))


def main() -> None:
    """Measure and draw."""
    found = {count: measure(count) for count in DRAWN}

    def line(name: str, pick: Callable[[Times], float]) -> Line:
        return Line(name, [(count, pick(times)) for count, times in found.items()])

    kinds = [
        line("decision, median", lambda one: at(one.every, 50)),
        line("decision, 99th percentile", lambda one: at(one.every, 99)),
        line("refusal, 99th percentile", lambda one: at(one.refused, 99)),
        line("a GPU's change and a decision", lambda one: at(one.changed, 50)),
        line("first decision of a kind", lambda one: at(one.first, 50)),
        line("verdicts of all GPUs", lambda one: at(one.explained, 50)),
    ]
    policies = [line(policy.value, lambda one, policy=policy: at(one.placed[policy], 99)) for policy in Policy]  # type: ignore[misc]
    panels = [Panel("What is asked", kinds), Panel("A decision by policy, 99th percentile", policies)]
    title = "Time of decisions over the size of the fleet"
    PICTURE.write_text(draw(title, panels, across="GPUs in the fleet", up="milliseconds"), encoding="utf-8")
    for each in (*kinds, *policies):
        print(f"{each.name:<34}" + "".join(f"{value:>9.3f}" for _, value in each.points))  # noqa: T201 its purpose


if __name__ == "__main__":
    main()
