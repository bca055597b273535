"""Wherever the operator is killed while room is made, the next one brings it to the same end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import dying_operator
from support.client import eventually
from support.overbooking import Watch
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.operator_process import Operator
    from support.site import Site

SECOND = "node1-0000-02-00-0"
MOST = 80
"""Requests after which room has long been made."""


def begin(site: Site, number: int) -> Operator:
    """Start an operator that ends before its request of this number."""
    program = [sys.executable, str(Path(dying_operator.__file__)), str(number)]
    return site.plane.operator(ready=False, program=program)


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


SCENES = {
    "evicted": (evicted, {"eviction": True}, [card(0, 3)], {}),
    "moved": (moved, {"moves": True}, [card(0, 3), card(1, 5)], {"parallel": 8}),
}


@pytest.mark.long
@pytest.mark.parametrize("scene", SCENES)
def test_killed_at_any_step_the_end_is_the_same(site: Site, scene: str) -> None:
    right, allowed, cards, serving = SCENES[scene]
    site.operator()
    site.node(devices=cards)
    site.rule(disruption={"minInterval": "0s", "maxPerMinute": 1000, **allowed})
    watch = Watch(site.plane)
    ends = []
    for number in range(1, MOST):
        end = once(site, number, right, serving)
        if end is None:
            break
        ends.append(end)
    watch.stop()
    print("\n".join(ends))  # noqa: T201 shown when the test fails
    assert 8 < len(ends) < MOST - 1, "it was killed at each step"
    assert not watch.overbooked, watch.overbooked


def once(site: Site, number: int, right: Callable[[Site], bool], serving: dict[str, int]) -> str | None:
    """Make room once, with one kill; gives before which request, or None when there were not so many."""
    site.operator()
    site.serve("low", placement={"policy": "MostMemory"})
    site.plane.stop_operators()
    site.apply("high", priority=5, serving=serving)
    dying = begin(site, number)

    def over() -> bool:
        return not dying.running or right(site)

    eventually(over, 30, f"the end of {number}: {dying.tail()}")
    died = not dying.running
    if died:
        assert dying.said("ends before"), dying.tail()
        site.plane.stop_operators()
        site.operator()
    eventually(lambda: right(site), 60, f"killed at {number}: {dying.tail(2)}")
    made = {key: count for key, count in site.kubelet.created.items() if f"{site.namespace}/high" in key}
    assert set(made.values()) == {number}, "made once each time"
    for name in ("high", "low"):
        site.client.delete(site.path(name))
    eventually(lambda: not site.all_pods() and not site.reservations(), 20)
    return dying.tail(1) if died else None
