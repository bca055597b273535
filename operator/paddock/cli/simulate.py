"""`paddock simulate`: a workload played through the operator's own placement, one pass per policy."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from paddock.api.modeldeployment import Policy
from paddock.cli.explanation import Seen, fleet_of
from paddock.cli.fleetfile import gpus_in, nodes_in, objects_of, workload_of
from paddock.cli.output import Output
from paddock.cli.plan import live
from paddock.cli.problem import Problem
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column
from paddock.cli.target import Session
from paddock.cli.words import clean, model_of
from paddock.core.fleet import Device, Fleet
from paddock.core.quantity import human
from paddock.core.simulate import Result, simulate

JSON = dict[str, Any]
BLOCKS = " ▁▂▃▄▅▆▇█"
STEPS = 40
"""Columns of a card's memory over time."""
WIDTH, ROW, LEFT = 960, 34, 260
"""Of the picture, in pixels: all of it, one card, and the names."""


@dataclass(frozen=True)
class Wish:
    """What to play, by which policies, and what to show."""

    workload: Path
    policies: Sequence[Policy]
    picture: Path | None
    output: Output


async def simulate_live(session: Session, wish: Wish) -> None:
    """Simulate on the cluster's GPUs, as if nothing ran on them."""
    _run(session.screen, await live(session.api), wish)


def simulate_saved(screen: Screen, fleets: Sequence[Path], wish: Wish) -> None:
    """Simulate on saved fleets."""
    _run(screen, objects_of(fleets), wish)


def _run(screen: Screen, objects: Sequence[JSON], wish: Wish) -> None:
    fleet = _empty(objects)
    jobs, outages = workload_of(wish.workload, objects)
    asked: list[Policy | None] = list(wish.policies) or [None, *Policy]
    results = {policy: simulate(fleet, jobs, outages, policy, time.perf_counter) for policy in asked}
    if wish.output in (Output.JSON, Output.YAML):
        screen.data([_to_dict(policy, one) for policy, one in results.items()], wish.output)
    else:
        _table(screen, results)
        screen.line()
        screen.line(f"Memory over time, {_named(asked[0])}:")
        _bars(screen, fleet, results[asked[0]])
    if wish.picture is not None:
        try:
            wish.picture.write_text(svg(fleet, results), encoding="utf-8")
        except OSError as error:
            raise Problem(f"cannot write {wish.picture}: {error}") from error


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


def _named(policy: Policy | None) -> str:
    return "as asked" if policy is None else policy.value


def _table(screen: Screen, results: dict[Policy | None, Result]) -> None:
    columns = [
        Column("POLICY"),
        Column("JOBS", right=True),
        Column("PLACED", right=True),
        Column("AT ONCE", right=True),
        Column("SERVED", right=True),
        Column("WAIT", right=True),
        Column("BROKEN OFF", right=True),
        Column("DECISION P50", right=True),
        Column("P99", right=True),
    ]
    rows: list[list[Cell | str]] = [
        [
            Cell(_named(policy), "bold"),
            str(one.jobs),
            str(one.placed),
            str(one.at_once),
            f"{_share(one):.1f} %",
            f"{one.waited / max(1, one.jobs):.0f} s",
            str(one.interrupted),
            f"{_quantile(one, 50):.2f} ms",
            f"{_quantile(one, 99):.2f} ms",
        ]
        for policy, one in results.items()
    ]
    screen.table(columns, rows)


def _share(one: Result) -> float:
    """Give the share of the wanted memory times time that was served, in per cent."""
    return 100 * one.served_byte_seconds / one.wanted_byte_seconds if one.wanted_byte_seconds else 100.0


def _quantile(one: Result, percent: int) -> float:
    """Give the milliseconds that so many per cent of the decisions did not exceed."""
    ordered = sorted(one.decisions) or [0.0]
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _bars(screen: Screen, fleet: Fleet, one: Result) -> None:
    """Print for each card how full it was, from the start to the end."""
    end = one.samples[-1].time if one.samples else 0
    rows: list[list[Cell | str]] = []
    for number, device in enumerate(fleet.devices):
        levels = [_at(one, end * step // STEPS, number) for step in range(STEPS)]
        text = "".join(BLOCKS[min(8, -(-8 * level // max(1, device.total or 1)))] for level in levels)
        rows.append([device.node, _name(device), human(device.total or 0), Cell(text, "blue")])
    screen.table([Column("NODE", least=8), Column("GPU", least=12), Column("MEMORY", right=True), Column("USED")], rows)


def _at(one: Result, moment: int, number: int) -> int:
    """Give the bytes in use on a card at a moment."""
    used = 0
    for sample in one.samples:
        if sample.time > moment:
            break
        used = sample.used[number]
    return used


def _name(device: Device) -> str:
    return f"{device.name} {model_of(device.description)}"


def svg(fleet: Fleet, results: dict[Policy | None, Result]) -> str:
    """Draw each card's memory over time, one block of rows per policy."""
    height = ROW * (len(fleet.devices) + 1) * len(results) + ROW
    fonts = 'font-family="sans-serif" font-size="13"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {fonts}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top = ROW
    for policy, one in results.items():
        out.append(
            f'<text x="8" y="{top}" font-weight="bold">{escape(_named(policy))}: {_share(one):.1f} % served</text>'
        )
        for number, device in enumerate(fleet.devices):
            top += ROW
            label = escape(f"{device.node} {_name(device)} {human(device.total or 0)}"[:40])
            out.append(f'<text x="8" y="{top}">{clean(label)}</text>')
            out.append(_area(one, number, device, top))
        top += ROW
    return "\n".join([*out, "</svg>\n"])


def _area(one: Result, number: int, device: Device, bottom: int) -> str:
    """Draw one card: a step line of what is in use, as a filled area."""
    end, room, tall = max(1, one.samples[-1].time if one.samples else 1), WIDTH - LEFT - 8, ROW - 8
    points = [f"{LEFT},{bottom}"]
    before = 0.0
    for sample in one.samples:
        x = LEFT + room * sample.time / end
        after = tall * sample.used[number] / max(1, device.total or 1)
        points += [f"{x:.1f},{bottom - before:.1f}", f"{x:.1f},{bottom - after:.1f}"]
        before = after
    points += [f"{LEFT + room},{bottom - before:.1f}", f"{LEFT + room},{bottom}"]
    frame = f'<rect x="{LEFT}" y="{bottom - tall}" width="{room}" height="{tall}" fill="none" stroke="#bbb"/>'
    return f'{frame}<polygon points="{" ".join(points)}" fill="#4a7fb5"/>'


def _to_dict(policy: Policy | None, one: Result) -> JSON:
    return {
        "policy": None if policy is None else policy.value,
        "jobs": one.jobs,
        "placed": one.placed,
        "atOnce": one.at_once,
        "servedShare": round(_share(one) / 100, 6),
        "waitedSeconds": one.waited,
        "interrupted": one.interrupted,
        "decisions": len(one.decisions),
        "decisionP50Ms": round(_quantile(one, 50), 4),
        "decisionP99Ms": round(_quantile(one, 99), 4),
    }
