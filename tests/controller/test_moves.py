"""Others make room for one that waits: within the rules, one at a time, and with no byte booked twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.client import JSON, eventually, stays
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


@pytest.fixture(autouse=True)
def books(site: Site) -> Iterator[None]:
    """Follow the GPU objects: nothing is booked twice at any time."""
    watch = Watch(site.plane)
    yield
    watch.stop()
    assert not watch.overbooked, watch.overbooked


def allow(site: Site, **more: Any) -> None:
    site.rule(disruption={"moves": True, "eviction": True, "minInterval": "0s", **more})


def device(site: Site, name: str) -> str:
    (placed,) = site.status(name)["placements"]
    gpu: str = placed["devices"][0]["gpu"]
    return gpu


def uids(site: Site, name: str) -> set[str]:
    return {one["metadata"]["uid"] for one in site.pods(name)}


def waits(site: Site, name: str, seconds: float = 2.0) -> str:
    """See that it waits for a device and goes on waiting; gives the message."""
    message: str = site.wait_for("Placed", "False", "WaitingForDevice", name)["message"]
    stays(lambda: site.condition("Placed", name)["reason"] == "WaitingForDevice", seconds)
    return message


def test_lower_priority_makes_room_once_it_is_gone(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3)])
    allow(site)
    site.serve("low")
    site.kubelet.behave("low", Behaviour(linger=1.5))
    site.apply("high", priority=5)
    told = site.wait_for("Placed", "False", "MakingRoom", "high")["message"]
    for part in (f"waits until {site.namespace}/low", f"evicts {site.namespace}/low", "(before: 1 waiting with 2 GiB"):
        assert part in told
    (promise,) = site.gpu()["promises"]
    assert (promise["deployment"], promise["bytes"]) == (f"{site.namespace}/high", 2 * GIB)
    assert site.pods("high") == [], "not before the other is gone"
    told = site.wait_for("Placed", "False", "Displaced", "low")["message"]
    assert f"left {GPU} for {site.namespace}/high" in told
    site.wait_for("Available", "True", "Serving", "high")
    eventually(lambda: site.status("low")["queue"]["position"] == 1)
    assert site.condition("Placed", "low")["reason"] == "Displaced"
    last = site.status("low")["lastDisruption"]
    assert (last["kind"], last["by"], last["gpu"]) == ("Evicted", f"{site.namespace}/high", GPU)
    assert site.gpu()["promises"] == []
    eventually(lambda: "MakingRoom" in {one["reason"] for one in site.events("high")})
    eventually(lambda: "Displaced" in {one["reason"] for one in site.events("low")})
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 1.5)
    site.client.delete(site.path("high"))
    site.wait_for("Available", "True", "Serving", "low", 20)
    assert "waiting" not in site.status("low")["lastDisruption"]


def test_nobody_is_evicted_unless_that_suffices_and_is_allowed(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 5)])
    site.serve("low")
    site.serve("high", priority=9)
    before = uids(site, "low") | uids(site, "high")
    site.apply("other", priority=5)
    waits(site, "other")
    allow(site, moves=False)
    eventually(lambda: site.condition("Available", "other")["reason"] == "Serving", 20, "once it is allowed")
    site.wait_for("Placed", "False", "Displaced", "low")
    site.apply("large", priority=8, **LARGE)
    waits(site, "large")
    site.apply("equal", priority=5)
    waits(site, "equal")
    site.client.delete(site.path("large"))
    assert uids(site, "high") <= before
    assert [one["metadata"]["name"] for one in site.pods("low")] == []
    assert len(site.reservations()) == 2


def test_who_is_not_to_be_disturbed_is_not(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3)])
    allow(site)
    site.serve("low", disruption={"allowed": False})
    before = uids(site, "low")
    site.apply("high", priority=5)
    waits(site, "high")
    assert uids(site, "low") == before
    site.change("low", disruption={"allowed": True, "maxUnavailable": 0})
    waits(site, "high", 1.5)
    assert uids(site, "low") == before
    site.kubelet.behave("low", Behaviour(linger=60))
    site.change("low", disruption={"maxUnavailable": 1})
    site.wait_for("Placed", "False", "MakingRoom", "high")
    site.client.delete(site.path("high"))
    eventually(lambda: site.gpu()["promises"] == [], what="nobody is promised the memory any more")


def test_replicas_are_spared_as_their_deployment_asks(site: Site) -> None:
    site.operator()
    site.node(devices=[card(number, 3) for number in range(3)])
    allow(site)
    site.serve("low", replicas=3, disruption={"maxUnavailable": 1})
    for name in ("a", "b"):
        site.apply(name, priority=5)
    eventually(lambda: len(site.pods("low")) == 2)
    served = eventually(lambda: [n for n in ("a", "b") if site.condition("Available", n)["reason"] == "Serving"])
    waits(site, "b" if served == ["a"] else "a")
    assert len(site.pods("low")) == 2
    site.change("low", disruption={"maxUnavailable": 2})
    for name in ("a", "b"):
        site.wait_for("Available", "True", "Serving", name, 20)
    assert len(site.pods("low")) == 1


def test_a_move_serves_all_the_time(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3), card(1, 5)])
    allow(site, eviction=False)
    site.serve("small", placement={"policy": "MostMemory"})
    assert device(site, "small") == SECOND
    ready: list[int] = []
    site.apply("large", **LARGE)

    def served() -> bool:
        ready.append(site.status("small")["readyReplicas"])
        return site.condition("Available", "large")["reason"] == "Serving"

    eventually(served, 20, "the large one has the large card")
    assert min(ready) == 1, "the small one serves all the time"
    assert (device(site, "large"), device(site, "small")) == (SECOND, GPU)
    site.wait_for("Progressing", "False", "Complete", "small")
    last = site.status("small")["lastDisruption"]
    assert (last["kind"], last["by"], last["gpu"]) == ("Moved", f"{site.namespace}/large", SECOND)
    assert f"moves {site.namespace}/small (2 GiB) from {SECOND} to {GPU}" in last["message"]
    assert "after: 1 started anew with 2 GiB" in last["message"]
    eventually(lambda: "Moving" in {one["reason"] for one in site.events("small")})
    assert site.gpu(SECOND)["promises"] == []
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 1.5)
    before = uids(site, "small")
    site.change("small", replicas=2)
    site.change("small", replicas=1)
    site.wait_for("Progressing", "False", "Complete", "small")
    assert uids(site, "small") == before, "it stays where it has moved"


def test_a_move_whose_successor_never_serves_ends_with_the_old_one(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3), card(1, 5)])
    allow(site, eviction=False)
    site.serve("small", placement={"policy": "MostMemory"})
    before = uids(site, "small")
    site.kubelet.behave("small", Behaviour(up=False))
    site.apply("large", **LARGE)
    site.wait_for("Progressing", "True", "Moving", "small")
    eventually(lambda: len(site.pods("small")) == 2)
    site.client.delete(site.path("large"))
    eventually(lambda: uids(site, "small") == before, what="the successor is removed")
    eventually(lambda: len(site.reservations()) == 1)
    assert site.condition("Available", "small")["status"] == "True"


def test_disruptions_keep_their_distance(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3), card(1, 3)])
    allow(site, minInterval="1h", maxPerMinute=1)
    site.serve("a")
    site.serve("b")
    site.apply("first", priority=5)
    site.wait_for("Available", "True", "Serving", "first")
    site.apply("second", priority=6)
    waits(site, "second")
    allow(site, minInterval="1h", maxPerMinute=4)
    site.wait_for("Available", "True", "Serving", "second", 20)
    assert site.pods("a") == site.pods("b") == []
    site.apply("third", priority=7)
    waits(site, "third")
    operator = site.plane.operators[-1]
    operator.terminate()
    site.operator()
    waits(site, "third")


def test_memory_must_be_back_before_it_is_used(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3)])
    allow(site)
    site.serve("low")
    used = card(0, 3).model_copy(update={"memory_free": GIB})
    site.plane.report("node1", [used])
    eventually(lambda: site.gpu()["memory"]["free"] == "1024Mi")
    site.apply("high", priority=5)
    eventually(lambda: f"{GPU} reports the memory back" in site.condition("Placed", "high")["message"])
    assert site.pods("low") == []
    stays(lambda: not site.pods("high"), 1.5)
    site.plane.report("node1", [card(0, 3)])
    site.wait_for("Available", "True", "Serving", "high")


def test_room_is_kept_for_one_that_has_waited_for_long(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 5)])
    site.rule(disruption={"holdRoomAfter": "1s"})
    site.serve("a")
    site.serve("b")
    site.apply("large", **LARGE)
    told = site.wait_for("Placed", "False", "MakingRoom", "large")["message"]
    assert told.startswith(f"room is kept on {GPU}")
    site.apply("later")
    site.client.delete(site.path("a"))
    waits(site, "later")
    site.serve("urgent", priority=5)
    site.client.delete(site.path("urgent"))
    site.client.delete(site.path("b"))
    site.wait_for("Available", "True", "Serving", "large", 20)
    assert site.pods("later") == []
    assert f"{site.namespace}/large" not in {one["deployment"] for one in site.gpu()["promises"]}


def test_a_sticky_replica_goes_back_to_its_card(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 16)])
    site.serve("first", placement={"sticky": True, "policy": "MostMemory"})
    home = device(site, "first")
    other = {GPU: SECOND, SECOND: GPU}[home]
    site.serve("second", placement={"devices": [{"node": "node1", "name": {GPU: "CUDA0", SECOND: "CUDA1"}[home]}]})
    assert site.status("first")["lastDevices"] == [{"replica": 0, "gpu": home}]
    (pod,) = site.pods("first")
    site.client.delete(site.path(pod["metadata"]["name"], "pods"), gracePeriodSeconds=0)
    eventually(lambda: pod["metadata"]["uid"] not in uids(site, "first") and site.pods("first"))
    site.wait_for("Available", "True", "Serving", "first")
    assert device(site, "first") == home
    assert "where it was before (sticky)" in site.status("first")["placements"][0]["reason"]
    site.change("first", placement={"sticky": False})
    site.wait_for("Progressing", "False", "Complete", "first")
    (pod,) = site.pods("first")
    site.client.delete(site.path(pod["metadata"]["name"], "pods"), gracePeriodSeconds=0)
    eventually(lambda: device(site, "first") == other, what="without it the other card has more room")
