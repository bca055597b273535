"""The exact optimum of a case by OR-tools, or where that is not proven in time a proven bound of it.

The optimum knows all who want a card at that moment and puts everybody where it likes. No share of a bound is told too
high: it is at least the optimum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ortools.linear_solver.python import model_builder
from ortools.sat.python import cp_model

from support.builders import MIB

if TYPE_CHECKING:
    from bench.cases import Case
    from paddock.core.fleet import Device
    from paddock.core.simulate import Job

STEP = 256 * MIB
SECONDS = 3.0
"""Of CP-SAT's deterministic time for one optimum: about twice as many of a processor."""


class Bound(NamedTuple):
    """What no placement is worth more than, in thousandths."""

    value: int
    proven: bool = False
    """Whether a placement is known that is worth just that."""


def optimum(one: Case, hint: dict[str, str], seconds: float = SECONDS) -> Bound:
    """Give the most that any placement of all jobs is worth, or a proven bound of it; `hint` is one placement.

    With no seconds only the bound that is found at once.
    """
    if not seconds:
        return Bound(relaxed(one))
    model = cp_model.CpModel()
    steps: dict[str, list[cp_model.LinearExpr]] = defaultdict(list)
    gain: list[cp_model.LinearExpr] = []
    for job in one.wanting:
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
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = seconds
    found = solver.solve(model)
    if found == cp_model.OPTIMAL:
        return Bound(round(solver.objective_value), proven=True)
    # Where it found nothing at all in time, its bound means nothing either.
    known = math.floor(solver.best_objective_bound) if found == cp_model.FEASIBLE else relaxed(one)
    return Bound(min(known, relaxed(one)))


def relaxed(one: Case) -> int:
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
    for job in one.wanting:
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


def _may(job: Job, card: Device) -> bool:
    return job.request.need <= (card.total or 0) and (job.request.selector is None or card.backend == "CUDA")
