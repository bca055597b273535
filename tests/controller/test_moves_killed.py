"""Wherever the operator is killed while room is made, the next one brings it to the same end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from support.client import eventually
from support.mortal import Mortal
from support.overbooking import Watch
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.site import Site

SECOND = "node1-0000-02-00-0"
MOST = 100
"""Requests after which room has long been made."""


def evicted(site: Site) -> bool:
    assert site.condition("Available", "high")["reason"] == "Serving"
    assert site.condition("Placed", "low")["reason"] == "Displaced"
    assert (site.status("low")["queue"], site.pods("low")) == ({"position": 1}, [])
    return booked_right(site)


def moved(site: Site) -> bool:
    for name, gpu in (("high", SECOND), ("low", GPU)):
        assert site.condition("Available", name)["reason"] == "Serving"
        assert site.condition("Progressing", name)["reason"] == "Complete"
        assert [one["devices"][0]["gpu"] for one in site.status(name)["placements"]] == [gpu]
    return booked_right(site)


def booked_right(site: Site) -> bool:
    """Each pod has its reservation, no other is there, and nothing is promised any more."""
    assert set(site.reservations()) == {one["metadata"]["name"] for one in site.all_pods()}
    assert not [one for gpu in site.gpus() for one in gpu["status"].get("promises", ())]
    last = site.status("low")["lastDisruption"]
    assert (last["by"], last.get("waiting", False)) == (f"{site.namespace}/high", not site.pods("low"))
    return True


def nothing_left(site: Site) -> bool:
    pods = [one["metadata"]["name"] for one in site.all_pods()]
    assert (pods, site.reservations()) == ([], {})
    return True


LARGE = {"parallel": 8}
SCENES: dict[str, tuple[Callable[[Site], bool], dict[str, bool], list[Any], dict[str, int], str]] = {
    "evicted": (evicted, {"eviction": True}, [card(0, 3)], {}, "64Gi"),
    "moved": (moved, {"moves": True}, [card(0, 3), card(1, 5)], LARGE, "64Gi"),
    "ended-first": (moved, {"moves": True}, [card(0, 3), card(1, 5)], LARGE, "6Gi"),
}
"""What is right at the end, what is allowed, the cards, what the one that waits needs, and the quota.

Under the last quota the old pod ends before its successor is made."""


@pytest.mark.parametrize(
    ("scene", "step"),
    [
        *(pytest.param(scene, 4, id=f"{scene}-some") for scene in ("evicted", "moved")),
        *(pytest.param(scene, 1, id=f"{scene}-all", marks=pytest.mark.long) for scene in SCENES),
    ],
)
def test_killed_at_any_step_the_end_is_the_same(site: Site, scene: str, step: int) -> None:
    """Of each four requests one in the daily tests, another one each time; all of them in the long ones."""
    right, allowed, cards, serving, quota = SCENES[scene]
    site.operator()
    site.node(devices=cards)
    site.rule(disruption={"minInterval": "0s", "maxPerMinute": 1000, **allowed}, maxGpuMemory=quota)
    site.plane.stop_operators()
    watch = Watch(site.plane)
    ends: list[str] = []
    try:
        for number in range(1 + os.getpid() % step, MOST, step):
            end = once(site, number, right, serving)
            if not end:
                break
            ends.append(f"{number}: {end}")
    finally:
        watch.stop()
        print("\n".join(ends))  # noqa: T201 shown when the test fails
    assert 8 // step < len(ends) < MOST // step - 1, "it was killed at each step"
    assert not watch.overbooked, watch.overbooked


def once(site: Site, number: int, right: Callable[[Site], bool], serving: dict[str, int]) -> str:
    """Make room once, with one kill; gives before which request, or nothing when there were not so many."""
    operator = Mortal(site.plane, number)
    try:
        site.serve("low", placement={"policy": "MostMemory"})
        site.apply("high", priority=5, serving=serving)
        before = sum(count for key, count in site.kubelet.created.items() if f"{site.namespace}/high" in key)
        eventually(lambda: operator.dead or right(site), 30, f"the end of {number}")
        died = operator.spared()
        if died:
            operator.end()
            operator = Mortal(site.plane)
        eventually(lambda: right(site), 45, f"killed at {number}, before {died}")
        after = sum(count for key, count in site.kubelet.created.items() if f"{site.namespace}/high" in key)
        assert after - before <= 1, "it was made once"
        for name in ("high", "low"):
            site.client.delete(site.path(name))
        eventually(lambda: nothing_left(site), 30, f"all is given back after {number}, before {died}")
    finally:
        operator.end()
    return died
