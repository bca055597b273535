"""`paddock simulate`: a workload played through the operator's own placement, one pass per policy."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paddock.api.modeldeployment import Policy
from paddock.cli.explanation import Seen, fleet_of
from paddock.cli.fleetfile import gpus_in, nodes_in, objects_of, workload_of
from paddock.cli.output import Output
from paddock.cli.picture import name_of, png, share, svg
from paddock.cli.plan import live
from paddock.cli.problem import Problem
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column
from paddock.cli.target import Session
from paddock.core.fleet import Fleet
from paddock.core.moves import Limits
from paddock.core.quantity import human
from paddock.core.simulate import Result, simulate

JSON = dict[str, Any]
BLOCKS = " ▁▂▃▄▅▆▇█"
STEPS = 40
"""Columns of a card's memory over time."""


@dataclass(frozen=True)
class Wish:
    """What to play, by which policies and limits, and what to show."""

    workload: Path
    policies: Sequence[Policy]
    limits: Limits
    svg: Path | None
    png: Path | None
    output: Output


class Way(NamedTuple):
    """One way to play the workload."""

    policy: Policy | None
    """None: each model's own."""
    limits: Limits | None = None
    """What may be moved and evicted."""

    @property
    def name(self) -> str:
        """What it is called in the output."""
        words = "as asked" if self.policy is None else self.policy.value
        if self.limits is None:
            return words
        may = [text for text, number in (("moves", self.limits.moves), ("evictions", self.limits.evictions)) if number]
        return f"{words}, {' and '.join(may)}"


async def simulate_live(session: Session, wish: Wish) -> None:
    """Simulate on the cluster's GPUs, as if nothing ran on them."""
    _run(session.screen, await live(session.api), wish)


def simulate_saved(screen: Screen, fleets: Sequence[Path], wish: Wish) -> None:
    """Simulate on saved fleets."""
    _run(screen, objects_of(fleets), wish)


def _run(screen: Screen, objects: Sequence[JSON], wish: Wish) -> None:
    fleet = _empty(objects)
    jobs, outages = workload_of(wish.workload, objects)
    ways = _ways(wish)
    results = {one: simulate(fleet, jobs, outages, one.policy, time.perf_counter, one.limits) for one in ways}
    if wish.output in (Output.JSON, Output.YAML):
        screen.data([_to_dict(way, one) for way, one in results.items()], wish.output)
    else:
        _table(screen, results)
        shown = [one for one in ways if one.policy is ways[0].policy][-1]
        screen.line()
        screen.line(f"Memory over time, {shown.name}:")
        _bars(screen, fleet, results[shown])
    named = {way.name: one for way, one in results.items()}
    if wish.svg is not None:
        _write(wish.svg, svg(fleet, named).encode())
    if wish.png is not None:
        _write(wish.png, png(fleet, named))


def _ways(wish: Wish) -> list[Way]:
    """Give each policy, and beside it the same with moves and evictions where those are asked for."""
    policies: list[Policy | None] = list(wish.policies) or [None, *Policy]
    more = [wish.limits] if wish.limits.moves or wish.limits.evictions else []
    return [Way(policy, limits) for policy in policies for limits in (None, *more)]


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise Problem(f"cannot write {path}: {error}") from error


def _empty(objects: Sequence[JSON]) -> Fleet:
    """Give the fleet of the objects with nothing on it: what runs there is no part of the workload."""
    gpus = gpus_in(objects)
    if not gpus:
        raise Problem("there is no GPU in the fleet")
    bare = []
    for one in gpus:
        memory = one.status.memory.model_copy(update={"free": None})
        bare.append(replace(one, status=one.status.model_copy(update={"reservations": [], "memory": memory})))
    return fleet_of(Seen(bare, nodes_in(objects), None), None, "")[0]


def _table(screen: Screen, results: dict[Way, Result]) -> None:
    disturbing = any(way.limits is not None for way in results)
    columns = [
        Column("POLICY"),
        *(Column(head, right=True) for head in ("JOBS", "PLACED", "AT ONCE", "SERVED", "VALUE", "WAIT", "BROKEN OFF")),
        *(Column(head, right=True) for head in ("MOVES", "EVICTIONS") if disturbing),
        *(Column(head, right=True) for head in ("DECISION P50", "P99")),
        *(Column(head, right=True) for head in ("SEARCH P50", "P99") if disturbing),
    ]
    rows: list[list[Cell | str]] = [
        [
            Cell(way.name, "bold"),
            str(one.jobs),
            str(one.placed),
            str(one.at_once),
            f"{share(one):.1f} %",
            f"{_value(one):.1f} %",
            f"{one.waited / max(1, one.jobs):.0f} s",
            str(one.interrupted),
            *([str(one.moves), str(one.evictions)] if disturbing else []),
            f"{_quantile(one.decisions, 50):.2f} ms",
            f"{_quantile(one.decisions, 99):.2f} ms",
            *([f"{_quantile(one.searches, percent):.2f} ms" for percent in (50, 99)] if disturbing else []),
        ]
        for way, one in results.items()
    ]
    screen.table(columns, rows)


def _value(one: Result) -> float:
    """Give the share of the jobs' values times time that was served, in per cent."""
    return 100 * one.served_value / one.wanted_value if one.wanted_value else 100.0


def _quantile(seconds: Sequence[float], percent: int) -> float:
    """Give the milliseconds that so many per cent of them did not exceed."""
    ordered = sorted(seconds) or [0.0]
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _bars(screen: Screen, fleet: Fleet, one: Result) -> None:
    """Print for each card how full it was, from the start to the end."""
    end = one.samples[-1].time if one.samples else 0
    rows: list[list[Cell | str]] = []
    for number, device in enumerate(fleet.devices):
        levels = [_at(one, end * step // STEPS, number) for step in range(STEPS)]
        text = "".join(BLOCKS[min(8, -(-8 * level // max(1, device.total or 1)))] for level in levels)
        rows.append([device.node, name_of(device), human(device.total or 0), Cell(text, "blue")])
    screen.table([Column("NODE", least=8), Column("GPU", least=12), Column("MEMORY", right=True), Column("USED")], rows)


def _at(one: Result, moment: int, number: int) -> int:
    """Give the bytes in use on a card at a moment."""
    used = 0
    for sample in one.samples:
        if sample.time > moment:
            break
        used = sample.used[number]
    return used


def _to_dict(way: Way, one: Result) -> JSON:
    return {
        "policy": None if way.policy is None else way.policy.value,
        "maxMoves": way.limits.moves if way.limits is not None else 0,
        "maxEvictions": way.limits.evictions if way.limits is not None else 0,
        "jobs": one.jobs,
        "placed": one.placed,
        "atOnce": one.at_once,
        "servedShare": round(share(one) / 100, 6),
        "valueShare": round(_value(one) / 100, 6),
        "waitedSeconds": one.waited,
        "interrupted": one.interrupted,
        "moves": one.moves,
        "movedBytes": one.moved_bytes,
        "evictions": one.evictions,
        "decisions": len(one.decisions),
        "decisionP50Ms": round(_quantile(one.decisions, 50), 4),
        "decisionP99Ms": round(_quantile(one.decisions, 99), 4),
        "searches": len(one.searches),
        "searchP50Ms": round(_quantile(one.searches, 50), 4),
        "searchP99Ms": round(_quantile(one.searches, 99), 4),
    }
