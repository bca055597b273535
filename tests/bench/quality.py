"""How good placement is: what fills a fleet, against the exact optimum, which knows all that will come.

Models arrive one after the other, and either stay until they want as much memory as there is, or come and go so that as
much is wanted all the time; then the fleet is looked at three times. OR-tools finds the optimum for those who want a
card at that moment.

`python -m bench.quality` (in `tests`) writes the tables of docs/quality.md.
"""

from __future__ import annotations

import platform
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cases import FLEETS, WAYS
from bench.optimum import SECONDS, optimum
from bench.page import machine
from paddock.api.modeldeployment import Policy
from paddock.core.moves import Limits
from paddock.core.policy import tokens_per_second
from paddock.core.simulate import Result, simulate
from support.builders import GIB

if TYPE_CHECKING:
    from bench.cases import Case

PAGE = Path(__file__).parents[2] / "docs" / "quality.md"
START, END = "<!-- tables of python -m bench.quality -->", "<!-- end of the tables -->"
SEEDS = {"homelab": 24, "workstations": 10, "datacenter": 3}
"""Of each fleet in the tables: from 0 to one less."""
LARGE = 24 * GIB
"""Models that need more are large."""
BASE = "BestFit"


@dataclass(frozen=True)
class Method:
    """A way to decide."""

    name: str
    policy: Policy | None = None
    """None: each job's own, which is JustFastEnough where a speed is asked for, else BestFit."""
    limits: Limits | None = None


MOVES, BOTH = Limits(moves=2), Limits(moves=2, evictions=8)
ENOUGH, MOVING, EVICTING = "JustFastEnough", "JustFastEnough, moves", "JustFastEnough, moves and evictions"
METHODS = (
    Method(BASE, Policy.BEST_FIT),
    Method("MostMemory", Policy.MOST_MEMORY),
    Method("Fastest", Policy.FASTEST),
    Method("Spread", Policy.SPREAD),
    Method("Auto", Policy.AUTO),
    Method("BestFit, with a speed JustFastEnough"),
    Method(ENOUGH, Policy.JUST_FAST_ENOUGH),
    Method(MOVING, Policy.JUST_FAST_ENOUGH, MOVES),
    Method(EVICTING, Policy.JUST_FAST_ENOUGH, BOTH),
)
CHOSEN = tuple(one for one in METHODS if one.name in (BASE, ENOUGH, MOVING, EVICTING))
"""Those that have aims."""
OBJECTIVES = ("models", "GiB", "large", "fast")
OF_WHAT = (
    "Of what was wanted where models come and go, per cent that is served: models / GiB / models of more than 24 GiB / "
    "models as fast as asked for."
)
Shares = dict[str, float]


@dataclass
class Measured:
    """What came of one seed: its moments taken together."""

    shares: Shares
    """Per cent of the optimum that each method reaches, by its name."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """By method: what was served of each objective; under the empty name what was wanted."""
    optima: int = 0
    proven: int = 0
    """Optima that were found; of the others a bound was taken."""


def played(one: Case, method: Method) -> Result:
    """Fill the fleet."""
    return simulate(one.fleet, one.jobs, policy=method.policy, limits=method.limits)


def measure(cases: Sequence[Case], methods: Sequence[Method] = METHODS, seconds: float = SECONDS) -> Measured:
    """Play all methods over the cases of one seed."""
    worths: Counter[str] = Counter()
    out = Measured({}, defaultdict(Counter))
    most = 0
    for one in cases:
        results = {each.name: played(one, each).placements for each in methods}
        here = {name: one.worth(placements) for name, placements in results.items()}
        bound = optimum(one, results[max(here, key=lambda each: here[each])], seconds)
        most += bound.value
        out.optima += 1
        out.proven += bound.proven
        worths.update(here)
        out.counts[""].update(served(one, None))
        for name, placements in results.items():
            out.counts[name].update(served(one, placements))
    out.shares = {each.name: 100 * worths[each.name] / most for each in methods}
    return out


def served(one: Case, placements: Mapping[str, str] | None) -> Counter[str]:
    """Give what a placement serves of each objective; without one what is wanted."""
    cards = {each.gpu: each for each in one.fleet.devices}
    out: Counter[str] = Counter()
    for job in one.wanting:
        if placements is not None and job.name not in placements:
            continue
        request = job.request
        out["models"] += 1
        out["GiB"] += request.need
        out["large"] += request.need > LARGE
        if request.min_tokens_per_second is not None:
            card = cards[placements[job.name]] if placements is not None else None
            speed = tokens_per_second(card, request.token_bytes) or 0 if card is not None else sys.maxsize
            out["fast"] += speed >= request.min_tokens_per_second
    return out


def gains(found: Sequence[Measured], method: str, base: str = BASE) -> tuple[float, float]:
    """Give the mean of the paired differences in points to another method, and its standard error."""
    differences = [one.shares[method] - one.shares[base] for one in found]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return statistics.mean(differences), error


def mean(found: Sequence[Measured], method: str) -> float:
    """Give the mean share of a method."""
    return statistics.mean(one.shares[method] for one in found)


Found = Mapping[tuple[str, str], Sequence[Measured]]
"""By way and fleet: what came of each seed."""


def table(found: Found) -> str:
    """Give the mean shares for each way and fleet, with the difference to the base, and over all of them."""
    heads = [f"{way}: {name} ({len(each)})" for (way, name), each in found.items()]
    out = [f"| {' | '.join(['', *heads, 'mean'])} |", "|---" * (len(found) + 2) + "|"]
    for method in next(iter(found.values()))[0].shares:
        cells = []
        for each in found.values():
            gain, error = gains(each, method)
            more = "" if method == BASE else f" ({gain:+.1f} ± {error:.1f})"
            cells.append(f"{mean(each, method):.1f}{more}")
        gain = statistics.mean(gains(each, method)[0] for each in found.values())
        more = "" if method == BASE else f" ({gain:+.1f})"
        cells.append(f"{statistics.mean(mean(each, method) for each in found.values()):.1f}{more}")
        out.append(f"| {' | '.join([method, *cells])} |")
    return "\n".join(out)


def objectives(found: Found, way: str) -> str:
    """Give the per cent of what is wanted that is served, of each objective, where models come in this way."""
    mine = {name: each for (each_way, name), each in found.items() if each_way == way}
    out = [f"| {' | '.join(['', *mine])} |", "|---" * (len(mine) + 1) + "|"]
    for method in (one.name for one in METHODS):
        cells = []
        for each in mine.values():
            wanted, got = Counter[str](), Counter[str]()
            for one in each:
                wanted.update(one.counts[""])
                got.update(one.counts[method])
            cells.append(" / ".join(f"{100 * got[key] / wanted[key]:.0f}" for key in OBJECTIVES))
        out.append(f"| {' | '.join([method, *cells])} |")
    return "\n".join(out)


def about(found: Found) -> str:
    """Say where it was measured, with which seeds, and how many optima were proven."""
    every = [one for each in found.values() for one in each]
    seeds = ", ".join(f"0 to {count - 1} of {name}" for name, count in SEEDS.items())
    programs = f"Python {platform.python_version()}, OR-tools {version('ortools')}"
    optima, proven = sum(one.optima for one in every), sum(one.proven for one in every)
    return (
        f"Measured with {programs} on {machine()}; seeds {seeds}. CP-SAT proved {proven} of {optima} optima within "
        f"{SECONDS:g} seconds of its deterministic time each; of the others its bound is taken."
    )


def main() -> None:
    """Measure all and renew the tables of the page."""
    found: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for name, count in SEEDS.items():
        for way, cases in WAYS.items():
            for seed in range(count):
                found[way, name].append(measure(cases(name, seed)))
                sys.stderr.write(f"{way}, {name} {seed}: {found[way, name][-1]}\n")
    write({(way, name): found[way, name] for way in WAYS for name in FLEETS})


def write(found: Found) -> None:
    """Renew the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    tables = "\n\n".join((table(found), OF_WHAT, objectives(found, "come and go"), about(found)))
    PAGE.write_text(f"{before}{START}\n{tables}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
