"""How much of the exact optimum placement reaches; `python -m bench.quality` makes the table of docs/quality.md."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from bench.cases import FLEETS, WAYS, Case, changing, filling
from bench.optimum import Bound, optimum, relaxed
from bench.quality import (
    BASE,
    CHOSEN,
    ENOUGH,
    EVICTING,
    METHODS,
    MOVING,
    Measured,
    gains,
    mean,
    measure,
    played,
    served,
    table,
)
from paddock.api.modeldeployment import Policy
from paddock.core.request import Request
from paddock.core.simulate import Job
from support.builders import GIB, device, fleet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paddock.core.fleet import Fleet


def holds(found: Iterable[list[Measured]]) -> None:
    """Assert what placement is to reach on average over some fleets, each of which counts alike."""
    fleets = list(found)
    assert statistics.mean(gains(each, ENOUGH)[0] for each in fleets) >= 0  # not below BestFit
    assert statistics.mean(gains(each, MOVING)[0] for each in fleets) >= 1.5
    assert statistics.mean(mean(each, EVICTING) for each in fleets) >= 96
    assert max(share for each in fleets for one in each for share in one.shares.values()) <= 100.0001


def test_where_models_come_and_go_thirteen_cards_serve_nearly_what_they_could() -> None:
    holds([[measure(changing("homelab", seed), CHOSEN, seconds=0.2) for seed in range(12)]])


@pytest.mark.long
def test_all_fleets_serve_nearly_what_they_could() -> None:
    """Some seeds of each fleet, in some minutes; `python -m bench.quality` takes more of them."""
    seeds = {"homelab": 12, "workstations": 4, "datacenter": 1}
    assert seeds.keys() == FLEETS.keys()
    found = {
        (way, name): [measure(cases(name, seed), CHOSEN, seconds=0.2) for seed in range(count)]
        for name, count in seeds.items()
        for way, cases in WAYS.items()
    }
    print(table(found))  # noqa: T201 for whoever reads the log
    holds(found.values())


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
    assert optimum(one, {}) == Bound(17_000, proven=True)
    assert optimum(one, {}, seconds=0) == Bound(relaxed(one), proven=False)
    assert 17_000 <= relaxed(one) <= 23_000
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
        "datacenter": 60,
    }


def test_a_bound_is_no_less_than_what_is_placed_however_little_time_there_is() -> None:
    (one,) = filling("datacenter", 0)
    assert optimum(one, {}, seconds=1e-6).value >= one.worth(played(one, METHODS[0]).placements)


def test_what_is_served_is_counted_by_objective() -> None:
    where = fleet(device("a", total=40 * GIB, free=None, bandwidth=100 * 10**9), device("b", total=8 * GIB, free=None))
    large = Job("large-0", 0, Request(need=30 * GIB, min_tokens_per_second=2, token_bytes=30 * GIB), value=1)
    small_ = Job("small-0", 1, Request(need=4 * GIB, min_tokens_per_second=10, token_bytes=4 * GIB), value=1)
    one = Case(where, (large, small_))
    assert served(one, None) == {"models": 2, "GiB": 34 * GIB, "large": 1, "fast": 2}
    assert served(one, {"small-0": "a"}) == {"models": 1, "GiB": 4 * GIB, "large": 0, "fast": 1}
    assert served(one, {"large-0": "a"}) == {"models": 1, "GiB": 30 * GIB, "large": 1, "fast": 0}
    assert METHODS[0].name == BASE
