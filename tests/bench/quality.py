"""How good placement is: what fills a fleet, against the exact optimum, which knows all that will come.

Models arrive one after the other, and stay, until they want as much memory as there is, or more. OR-tools finds the
optimum (CP-SAT); where it proves none in time, its proven upper bound is taken, so that no share is told too high.

`python -m bench.quality` (in `tests`) writes the table of docs/quality.md.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ortools.linear_solver.python import model_builder
from ortools.sat.python import cp_model

from paddock.api.modeldeployment import Policy
from paddock.api.selector import DeviceSelector
from paddock.core.moves import Limits
from paddock.core.policy import tokens_per_second
from paddock.core.quantity import round_up
from paddock.core.request import Request
from paddock.core.simulate import Job, Result, simulate
from support.builders import GIB, MIB, device, fleet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paddock.core.fleet import Device, Fleet

PAGE = Path(__file__).parents[2] / "docs" / "quality.md"
START, END = "<!-- table of python -m bench.quality -->", "<!-- end of the table -->"
STEP = 256 * MIB
SEEDS = range(10)
LOADS = (1.0, 1.3)
"""Memory that is wanted, as a multiple of what there is."""
SECONDS = 0.5
"""Of CP-SAT's deterministic time for one optimum."""


class Card(NamedTuple):
    """Some equal cards."""

    number: int
    gib: int
    gigabytes_per_second: int
    backend: str = "CUDA"


FLEETS: dict[str, tuple[Card, ...]] = {
    "homelab": (
        Card(1, 6, 192),
        Card(1, 11, 484),
        Card(1, 11, 616),
        Card(2, 12, 360),
        Card(1, 16, 288),
        Card(1, 16, 448),
        Card(1, 24, 346),
        Card(2, 24, 936),
        Card(1, 24, 1008),
        Card(1, 24, 960, "ROCm"),
        Card(1, 32, 1024, "ROCm"),
    ),
    "workstations": (
        Card(4, 12, 288),
        Card(6, 16, 448),
        Card(4, 24, 300),
        Card(6, 24, 768),
        Card(4, 24, 1008),
        Card(6, 48, 768),
        Card(2, 48, 960),
        Card(2, 96, 1792),
    ),
    "datacenter": (
        Card(12, 16, 320),
        Card(12, 24, 300),
        Card(12, 24, 600),
        Card(8, 48, 864),
        Card(4, 40, 1555),
        Card(4, 80, 2039),
        Card(4, 80, 3350),
    ),
}
"""Mixed fleets of 13, 34 and 56 cards."""
SIZES = (0.3, 0.6, 1.2, 2.3, 3.2, 4.8, 5.5, 6.5, 8.2, 9.6, 12.5, 15, 18, 20, 22, 27, 33, 38, 44, 50, 58, 66, 70)
"""GiB that models need; the small ones are more common."""
SPEEDS = (0, 0, 0, 20, 30, 40, 50, 60, 80)
"""What is asked for, in per cent of the tokens per second that the fastest card with enough memory is known to give."""
PRIORITIES = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2)
ONLY_NVIDIA = DeviceSelector.model_validate({"vendors": ["NVIDIA"]})


@dataclass(frozen=True)
class Case:
    """A fleet and who comes, in this order."""

    fleet: Fleet
    jobs: tuple[Job, ...]

    def worth(self, placements: dict[str, str]) -> int:
        """Give what a placement of jobs is worth, in thousandths."""
        cards = {one.gpu: one for one in self.fleet.devices}
        return sum(job.worth(cards[placements[job.name]]) for job in self.jobs if job.name in placements)


@dataclass(frozen=True)
class Method:
    """A way to decide."""

    name: str
    policy: Policy | None = None
    """None: each job's own, which is JustFastEnough where a speed is asked for, else BestFit."""
    limits: Limits | None = None


MOVES, BOTH = Limits(moves=2), Limits(moves=2, evictions=8)
METHODS = (
    Method("BestFit", Policy.BEST_FIT),
    Method("MostMemory", Policy.MOST_MEMORY),
    Method("Fastest", Policy.FASTEST),
    Method("Spread", Policy.SPREAD),
    Method("Auto", Policy.AUTO),
    Method("JustFastEnough", Policy.JUST_FAST_ENOUGH),
    Method("as asked", None),
    Method("as asked, moves", None, MOVES),
    Method("as asked, moves and evictions", None, BOTH),
)


def case(name: str, seed: int, load: float = 1.0) -> Case:
    """Give one case of a fleet: who comes wants so many times the memory that there is."""
    chance = random.Random(f"{name} {seed}")  # noqa: S311 no secret
    where = fleet(*_cards(FLEETS[name]))
    room = sum(one.total or 0 for one in where.devices)
    largest = max(one.total or 0 for one in where.devices)
    sizes = [one for one in SIZES if one * GIB <= largest]
    jobs: list[Job] = []
    wanted = 0
    while wanted < load * room:
        gib = chance.choices(sizes, [one**-0.5 for one in sizes])[0]
        need = round_up(int(gib * GIB * chance.uniform(0.9, 1.0)))
        priority = chance.choice(PRIORITIES)
        read = need // chance.choice((1, 1, 1, 1, 8))
        most = max(tokens_per_second(one, read) or 0 for one in where.devices if (one.total or 0) >= need)
        speed = most * chance.choice(SPEEDS) // 100 or None
        request = Request(
            need=need,
            policy=Policy.JUST_FAST_ENOUGH if speed else Policy.BEST_FIT,
            priority=priority,
            min_tokens_per_second=speed,
            token_bytes=read,
            selector=ONLY_NVIDIA if chance.random() < 0.1 else None,
        )
        value = round(100 * (need / GIB) ** 0.5 * 2**priority)
        jobs.append(Job(f"m{len(jobs):04}-0", len(jobs), request, value=value))
        wanted += need
    return Case(where, tuple(jobs))


def _cards(kinds: Iterable[Card]) -> list[Device]:
    out: list[Device] = []
    for kind in kinds:
        for _ in range(kind.number):
            number = len(out)
            out.append(
                device(
                    f"gpu-{number:02}",
                    node=f"node-{number // 2:02}",
                    backend=kind.backend,
                    total=kind.gib * GIB,
                    free=None,
                    bandwidth=kind.gigabytes_per_second * 10**9,
                    description="",
                )
            )
    return out


def played(one: Case, method: Method) -> Result:
    """Fill the fleet."""
    return simulate(one.fleet, one.jobs, policy=method.policy, limits=method.limits)


def optimum(one: Case, hint: dict[str, str], seconds: float = SECONDS) -> int:
    """Give the most that any placement of all jobs is worth, or a proven bound of it; `hint` is one placement."""
    model = cp_model.CpModel()
    steps: dict[str, list[cp_model.LinearExpr]] = defaultdict(list)
    gain: list[cp_model.LinearExpr] = []
    for job in one.jobs:
        mine = []
        for card in one.fleet.devices:
            if _may(job, card):
                taken = model.new_bool_var(f"{job.name} {card.gpu}")
                model.add_hint(taken, hint.get(job.name) == card.gpu)
                steps[card.gpu].append(job.request.need // STEP * taken)
                gain.append(job.worth(card) * taken)
                mine.append(taken)
        model.add_at_most_one(mine)
    for card in one.fleet.devices:
        model.add(sum(steps[card.gpu]) <= (card.total or 0) // STEP)
    model.maximize(sum(gain))
    return min(_solved(model, seconds), _relaxed(one))


def _relaxed(one: Case) -> int:
    """Give a bound that is found at once, also for many equal cards: each kind of card is taken as one large one.

    Models may be cut into parts. Of those that need more than half a card one has room on each, of those that need more
    than a third two, and so on; all else that keeps equal cards apart is left out.
    """
    model = model_builder.Model()  # type: ignore[no-untyped-call]  # it has no types
    kinds: dict[tuple[int | None, int | None, str], list[Device]] = defaultdict(list)
    for card in one.fleet.devices:
        kinds[card.total, card.bandwidth, card.backend].append(card)
    gain = []
    there: dict[str, list[tuple[int, model_builder.Variable]]] = defaultdict(list)
    for job in one.jobs:
        mine = []
        for card, *_ in kinds.values():
            if _may(job, card):
                share = model.new_num_var(0, 1, "")
                there[card.gpu].append((job.request.need // STEP, share))
                gain.append(job.worth(card) * share)
                mine.append(share)
        model.add(model_builder.LinearExpr.sum(mine) <= 1)
    for cards in kinds.values():
        room, number = (cards[0].total or 0) // STEP, len(cards)
        known = there[cards[0].gpu]
        model.add(model_builder.LinearExpr.sum([need * share for need, share in known]) <= room * number)
        for parts in range(2, 6):
            large = [share for need, share in known if need * parts > room]
            if large:
                model.add(model_builder.LinearExpr.sum(large) <= (parts - 1) * number)
    model.maximize(model_builder.LinearExpr.sum(gain))
    solver = model_builder.Solver("GLOP")
    if solver.solve(model) != model_builder.SolveStatus.OPTIMAL:
        raise RuntimeError("GLOP gave no answer")
    return math.ceil(solver.objective_value)


def _solved(model: cp_model.CpModel, seconds: float) -> int:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.relative_gap_limit = 0.002
    solver.solve(model)
    return int(solver.best_objective_bound)


def _may(job: Job, card: Device) -> bool:
    return job.request.need <= (card.total or 0) and (job.request.selector is None or card.backend == "CUDA")


def shares(one: Case, methods: Sequence[Method] = METHODS, seconds: float = SECONDS) -> dict[str, float]:
    """Give the per cent of the optimum that each method reaches, by its name."""
    results = {each.name: played(one, each) for each in methods}
    worths = {each: one.worth(result.placements) for each, result in results.items()}
    best = max(worths, key=lambda each: worths[each])
    most = optimum(one, results[best].placements, seconds)
    return {each: 100 * worth / most for each, worth in worths.items()}


def gains(found: Sequence[dict[str, float]], method: str, base: str = "BestFit") -> tuple[float, float]:
    """Give the mean of the paired differences in points to another method, and its standard error."""
    differences = [one[method] - one[base] for one in found]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return statistics.mean(differences), error


def table(found: dict[tuple[str, float], list[dict[str, float]]]) -> str:
    """Give the table of the page: for each fleet and load the mean share, with the difference to BestFit."""
    heads = [f"{name}, {load:.0%}" for name, load in found]
    out = [f"| {' | '.join(['', *heads, 'all'])} |", "|---" * (len(found) + 2) + "|"]
    every = [one for each in found.values() for one in each]
    for method in METHODS:
        cells = [_cell(each, method.name) for each in (*found.values(), every)]
        out.append(f"| {' | '.join([method.name, *cells])} |")
    return "\n".join(out)


def _cell(found: Sequence[dict[str, float]], method: str) -> str:
    mean = statistics.mean(one[method] for one in found)
    gain, error = gains(found, method)
    return f"{mean:.1f}" if method == "BestFit" else f"{mean:.1f} ({gain:+.1f} ± {error:.1f})"


def main() -> None:
    """Measure all and renew the table of the page."""
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for name in FLEETS:
        for load in LOADS:
            here = found[name, load] = []
            for seed in SEEDS:
                here.append(shares(case(name, seed, load)))
                sys.stderr.write(f"{name} {load} {seed} {here[-1]}\n")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table(found)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
