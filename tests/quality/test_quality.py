"""How much of the exact optimum placement reaches; `python -m bench.quality` makes the table of docs/quality.md."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from bench.quality import FLEETS, METHODS, Case, changing, filling, gains, optimum, played, shares, table
from paddock.api.modeldeployment import Policy
from paddock.core.request import Request
from paddock.core.simulate import Job
from support.builders import GIB, device, fleet

if TYPE_CHECKING:
    from paddock.core.fleet import Fleet

FAST, MOVING, EVICTING = "as asked", "as asked, moves", "as asked, moves and evictions"


def holds(found: list[dict[str, float]]) -> None:
    """Assert what placement is to reach on average."""
    gain, error = gains(found, FAST)
    assert gain + error >= 0  # not below BestFit, as far as so many cases tell
    assert gains(found, MOVING)[0] >= 1.5
    assert statistics.mean(one[EVICTING] for one in found) >= 96
    assert max(one[name] for one in found for name in one) <= 100.0001


def test_where_models_come_and_go_thirteen_cards_serve_nearly_what_they_could() -> None:
    chosen = [one for one in METHODS if one.name in ("BestFit", FAST, MOVING, EVICTING)]
    holds([shares(changing("homelab", seed), chosen, seconds=0) for seed in range(12)])


@pytest.mark.long
def test_where_models_come_and_go_all_fleets_serve_nearly_what_they_could() -> None:
    found = {("", name): [shares(changing(name, seed)) for seed in range(4)] for name in FLEETS}
    print(table(found))  # noqa: T201 for whoever reads the log
    holds([one for each in found.values() for one in each])


@pytest.mark.long
def test_where_models_stay_evictions_reach_nearly_the_optimum() -> None:
    found = [shares(filling(name, seed)) for name in FLEETS for seed in range(4)]
    assert statistics.mean(one[EVICTING] for one in found) >= 96


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
    # 5 and 5 on one, 7 on the other; first come, first served puts 6 there.
    assert optimum(one, {}) == 17_000
    assert one.worth(played(one, METHODS[0]).placements) == 16_000


def test_a_case_is_the_same_each_time_and_asks_for_the_memory_that_there_is() -> None:
    assert filling("workstations", 3) == filling("workstations", 3)
    assert filling("workstations", 3) != filling("workstations", 4)
    (one,) = filling("workstations", 3)
    room = sum(each.total or 0 for each in one.fleet.devices)
    assert 1 <= sum(job.request.need for job in one.wanting) / room < 1.1
    several = [each for seed in range(8) for each in changing("homelab", seed)]
    wanted = sum(job.request.need for each in several for job in each.wanting)
    assert 0.8 <= wanted / sum(card.total or 0 for each in several for card in each.fleet.devices) < 1.2
    assert {name: sum(kind.number for kind in kinds) for name, kinds in FLEETS.items()} == {
        "homelab": 13,
        "workstations": 34,
        "datacenter": 56,
    }
