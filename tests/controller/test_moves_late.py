"""Moves where the old one has to end first, and promises that are not kept: the operator in the test's own process."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from paddock.controller import moves
from support.client import JSON, eventually, stays
from support.mortal import Mortal
from support.overbooking import Watch
from support.pretend_agent import GIB, card
from support.pretend_kubelet import Behaviour
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.site import Site

SECOND = "node1-0000-02-00-0"
LARGE: JSON = {"serving": {"parallel": 8}}
"""Needs 3.75 GiB; without it a model needs 2 GiB."""


@pytest.fixture
def watch(site: Site) -> Iterator[Watch]:
    one = Watch(site.plane)
    yield one
    one.stop()
    assert not one.overbooked, one.overbooked


@pytest.fixture
def own(site: Site) -> Iterator[Site]:
    """Give the site with two cards, and an operator within this process."""
    site.operator()
    site.node(devices=[card(0, 3), card(1, 5)])
    site.rule(disruption={"moves": True, "eviction": True, "minInterval": "0s"})
    site.plane.stop_operators()
    operator = Mortal(site.plane)
    yield site
    site.kubelet.behaviours.clear()
    for one in site.client.items(site.path()):
        site.client.delete(site.path(one["metadata"]["name"]))
    for one in site.all_pods():
        site.client.delete(site.path(one["metadata"]["name"], "pods"), gracePeriodSeconds=0)
    eventually(lambda: not site.all_pods() and not site.reservations(), what="all is given back")
    operator.end()


def gpu_of(site: Site, name: str) -> list[str]:
    return [one["devices"][0]["gpu"] for one in site.status(name).get("placements", ()) if one.get("devices")]


def uids(site: Site, name: str) -> set[str]:
    return {one["metadata"]["uid"] for one in site.pods(name)}


def told(site: Site, name: str) -> set[str]:
    return {one["reason"] for one in site.events(name)}


def promises(site: Site) -> list[Any]:
    return [each for one in site.gpus() for each in one["status"].get("promises", ())]


def test_under_a_quota_the_old_one_ends_before_its_successor_is_made(own: Site, watch: Watch) -> None:
    """4 GiB for both, 5.75 are wanted at last, 7.75 would be needed side by side."""
    own.rule(maxGpuMemory="6Gi")
    own.serve("small", placement={"policy": "MostMemory"})
    assert gpu_of(own, "small") == [SECOND]
    own.apply("large", **LARGE)
    together: list[int] = []

    def served() -> bool:
        mine = [one for one in own.all_pods() if one["metadata"]["name"].startswith("small")]
        together.append(len(mine))
        assert own.condition("Available", "large")["reason"] == "Serving"
        return own.condition("Available", "small")["reason"] == "Serving"

    eventually(served, 30, "both serve")
    assert (gpu_of(own, "large"), gpu_of(own, "small")) == ([SECOND], [GPU])
    assert max(together) == 1, "there was never a second pod of the small one"
    assert watch.most == 5.75 * GIB
    assert (promises(own), own.status("small")["lastDisruption"]["kind"]) == ([], "Moved")


@pytest.mark.parametrize("seconds", [890.0, 905.0])
def test_a_promise_stands_for_fifteen_minutes(own: Site, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    ahead = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0])
    monkeypatch.setattr(moves, "time", clock)
    own.serve("low", placement={"devices": [{"node": "node1", "name": "CUDA0"}]})
    own.kubelet.behave("low", Behaviour(linger=60))
    own.apply("high", priority=5, placement={"devices": [{"node": "node1", "name": "CUDA0"}]})
    own.wait_for("Placed", "False", "MakingRoom", "high")
    ahead[0] = seconds
    own.change("high", priority=6)  # A look.
    if seconds < moves.PATIENCE:
        own.wait_for("Placed", "False", "MakingRoom", "high")
        stays(lambda: len(promises(own)) == 1, 1.0)
        return
    own.wait_for("Placed", "False", "WaitingForDevice", "high")
    assert promises(own) == []
    eventually(lambda: "RoomNotFreed" in told(own, "high"))
    assert own.pods("high") == []


def test_a_move_that_does_not_come_about_in_time_is_taken_back(
    own: Site, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to look: the operator wakes by itself."""
    monkeypatch.setattr(moves, "PATIENCE", 3.0)
    own.serve("small", placement={"policy": "MostMemory"})
    before = uids(own, "small")
    own.kubelet.behave("small", Behaviour(up=False))
    own.rule(disruption={"moves": True, "eviction": False, "minInterval": "1h"})
    own.apply("large", **LARGE)
    own.wait_for("Progressing", "True", "Moving", "small")
    eventually(lambda: len(own.pods("small")) == 2, what="its successor loads")
    eventually(lambda: "RoomNotFreed" in told(own, "large"), 20)
    eventually(lambda: uids(own, "small") == before, what="the successor is removed")
    assert own.condition("Available", "small")["status"] == "True"
    eventually(lambda: set(own.reservations()) == {one["metadata"]["name"] for one in own.pods("small")})
    assert promises(own) == []
    own.wait_for("Placed", "False", "WaitingForDevice", "large")
    assert not watch.overbooked
