"""How much of the exact optimum placement reaches; `python -m bench.quality` makes the table of docs/quality.md."""

from __future__ import annotations

import statistics

import pytest

from bench.quality import FLEETS, LOADS, METHODS, Case, case, gains, optimum, played, shares, table
from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Fleet
from paddock.core.request import Request
from paddock.core.simulate import Job
from support.builders import GIB, device, fleet

FAST, MOVING, EVICTING = "as asked", "as asked, moves", "as asked, moves and evictions"


def holds(found: list[dict[str, float]]) -> None:
    """Assert what placement is to reach on average."""
    assert gains(found, FAST)[0] >= 0
    assert gains(found, MOVING)[0] >= 1.5
    assert statistics.mean(one[EVICTING] for one in found) >= 96
    assert max(one[name] for one in found for name in one) <= 100.0001


def test_thirteen_cards_are_filled_nearly_as_well_as_can_be() -> None:
    chosen = [one for one in METHODS if one.name in ("BestFit", FAST, MOVING, EVICTING)]
    holds([shares(case("homelab", seed, load), chosen, seconds=0.1) for load in LOADS for seed in range(8)])


@pytest.mark.long
@pytest.mark.parametrize("load", LOADS)
def test_all_fleets_are_filled_nearly_as_well_as_can_be(load: float) -> None:
    found = {(name, load): [shares(case(name, seed, load)) for seed in range(6)] for name in FLEETS}
    print(table(found))  # noqa: T201 for whoever reads the log
    holds([one for each in found.values() for one in each])


def small(where: Fleet, *jobs: tuple[int, int]) -> Case:
    """Give a case of jobs of (GiB, value)."""
    return Case(
        where,
        tuple(
            Job(f"j{number}-0", number, Request(need=gib * GIB, policy=Policy.BEST_FIT), value=value)
            for number, (gib, value) in enumerate(jobs)
        ),
    )


def test_the_optimum_is_the_optimum() -> None:
    where = fleet(device("a", total=10 * GIB, free=None), device("b", total=7 * GIB, free=None))
    one = small(where, (6, 6), (5, 5), (5, 5), (7, 7))
    # 5 and 5 on one, 7 on the other; first come, first served takes 6 and gets less.
    assert optimum(one, {}) == 17_000
    assert one.worth(played(one, METHODS[0]).placements) == 11_000


def test_a_case_is_the_same_each_time_and_asks_for_the_load_that_is_said() -> None:
    first = case("workstations", 3, 1.3)
    assert first == case("workstations", 3, 1.3)
    assert first != case("workstations", 4, 1.3)
    wanted = sum(one.request.need for one in first.jobs)
    room = sum(one.total or 0 for one in first.fleet.devices)
    assert 1.3 <= wanted / room < 1.4
    assert {name: sum(kind.number for kind in kinds) for name, kinds in FLEETS.items()} == {
        "homelab": 13,
        "workstations": 34,
        "datacenter": 56,
    }
