"""A workload played through placement and queue: what came when, waited, was broken off."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Fleet
from paddock.core.request import Request
from paddock.core.simulate import Job, Outage, simulate
from support.builders import GIB, device, fleet


def job(name: str, gib: int, arrival: int = 0, departure: int | None = None, priority: int = 0) -> Job:
    return Job(name, arrival, Request(need=gib * GIB, priority=priority), departure)


def cards(*sizes: int) -> Fleet:
    return fleet(*(device(f"gpu-{n}", total=size * GIB, free=None, pci_id=None) for n, size in enumerate(sizes)))


def test_what_does_not_fit_waits_until_something_leaves() -> None:
    jobs = [job("a", 6, 0, 100), job("b", 6, 10, 200), job("low", 3, 20, 300), job("high", 3, 30, 400, priority=1)]
    found = simulate(cards(8), jobs)
    assert (found.jobs, found.placed, found.at_once) == (4, 3, 1)
    # b never gets room: low and high take what a leaves, the higher priority first; then b leaves the queue at 200.
    assert [(one.time, one.used[0] // GIB) for one in found.samples] == [
        (0, 6),
        (10, 6),
        (20, 6),
        (30, 6),
        (100, 6),
        (200, 6),
        (300, 3),
        (400, 0),
    ]
    assert found.waited == (100 - 20) + (100 - 30) + (200 - 10)
    assert found.served_byte_seconds == (6 * 100 + 3 * 200 + 3 * 300) * GIB
    assert found.wanted_byte_seconds == (6 * 100 + 6 * 190 + 3 * 280 + 3 * 370) * GIB


def test_an_outage_sends_what_is_there_back_to_the_queue() -> None:
    found = simulate(cards(8, 4), [job("a", 6, 0, 100)], [Outage("gpu-0", 40, 60)])
    assert (found.placed, found.at_once, found.interrupted, found.waited) == (1, 1, 1, 20)
    assert [(one.time, one.used[0] // GIB) for one in found.samples] == [(0, 6), (40, 0), (60, 6), (100, 0)]


def test_a_policy_can_be_tried_in_place_of_each_job_s_own() -> None:
    jobs = [job("small", 2), job("large", 11, 1)]
    assert simulate(cards(12, 4), jobs).placed == 1
    assert simulate(cards(12, 4), jobs, policy=Policy.BEST_FIT).placed == 2


def test_decisions_are_timed_by_the_clock_that_is_handed_in() -> None:
    ticks = itertools.count()
    assert simulate(cards(8), [job("a", 1), job("b", 1)], clock=lambda: float(next(ticks))).decisions == [1.0, 1.0]


def test_nothing_at_all_is_no_error() -> None:
    assert simulate(cards(), []).jobs == 0


JOBS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 20), st.none() | st.integers(1, 20), st.integers(-1, 1)), max_size=10
)


@given(JOBS, st.lists(st.integers(2, 12), min_size=1, max_size=3), st.sampled_from(Policy), st.booleans())
def test_no_card_is_ever_overbooked_and_the_same_workload_gives_the_same(
    rows: list[tuple[int, int, int | None, int]], sizes: list[int], policy: Policy, broken: bool
) -> None:
    jobs = [
        job(f"m{n}", size, start, start + length if length else None, priority)
        for n, (size, start, length, priority) in enumerate(rows)
    ]
    outages = [Outage("gpu-0", 5, 9)] if broken else []
    found = simulate(cards(*sizes), jobs, outages, policy)
    assert found == simulate(cards(*sizes), list(reversed(jobs)), outages, policy)
    for sample in found.samples:
        assert all(have <= size * GIB for have, size in zip(sample.used, sizes, strict=True))
        assert not (broken and 5 <= sample.time < 9 and sample.used[0])
    assert found.served_byte_seconds <= found.wanted_byte_seconds
    assert found.at_once <= found.placed <= found.jobs == len(jobs)
