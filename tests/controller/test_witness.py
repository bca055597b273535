"""The driver's word on where servers are: it proves, refutes, and tells who else is on a card."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from paddock.api.report import DeviceProcess, DeviceUse
from support.client import JSON, eventually, stays
from support.harness import GPUS
from support.pretend_agent import GIB, MIB, card
from support.pretend_kubelet import record_of
from support.site import GPU

if TYPE_CHECKING:
    from support.site import Site

CARDS = [card(0, 16), card(1, 24)]
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
SECOND_GPU = "node1-0000-02-00-0"
STRANGER = DeviceProcess(pid=99, bytes=10 * GIB, command="python")


def server(pod: JSON, size: int) -> DeviceProcess:
    """Give a pod's process as the driver lists it."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    return DeviceProcess(pid=7, bytes=size, pod=pod["metadata"]["uid"], container=container, command="llama-server")


def show(site: Site, first: list[DeviceProcess] | None = None, second: list[DeviceProcess] | None = None) -> None:
    """Have the driver list these processes on the two cards of node1; it has 300 MiB of each for itself."""
    uses = [
        DeviceUse(
            pci_id=pci,
            source="NVML",
            used=300 * MIB + sum(one.bytes or 0 for one in processes or ()),
            processes=processes or [],
        )
        for pci, processes in ((FIRST, first), (SECOND, second))
    ]
    site.plane.report("node1", CARDS, uses=uses)


def up(site: Site, name: str = "gemma", other_than: str = "") -> JSON:
    """Give the pod of a deployment once its container runs."""

    def there() -> JSON | None:
        found = [one for one in site.pods(name) if one["metadata"]["uid"] != other_than]
        return found[0] if found and found[0]["status"].get("containerStatuses") else None

    return eventually(there, what="the server is up")


def start(site: Site, **settings: float) -> JSON:
    """Have a deployment's server come up on the second, larger card, where the driver does not list it yet."""
    site.operator(**settings)
    site.node(devices=CARDS)
    show(site)
    eventually(lambda: site.gpu()["memory"].get("foreign") == "0Mi")
    site.apply("gemma")
    pod = up(site)
    assert record_of(pod)["gpu"] == SECOND_GPU
    return pod


def test_the_driver_proves_and_its_number_is_told(site: Site) -> None:
    pod = start(site)
    eventually(lambda: site.condition("Verified")["status"] == "Unknown")
    stays(lambda: site.condition("Verified")["status"] == "Unknown", 0.5)
    show(site, second=[server(pod, 1300 * MIB)])
    proven = site.wait_for("Verified", "True", "ProcessOnDevice")
    assert "(0000:02:00.0) holds" in proven["message"]
    assert "the driver shows 1.26 GiB for its process there" in proven["message"]
    site.wait_for("Available", "True", "Serving")
    eventually(lambda: site.status()["placements"][0]["proof"] == {"evidence": "Driver", "observedBytes": 1300 * MIB})
    assert site.gpu(SECOND_GPU)["memory"]["foreign"] == "0Mi"
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 0.5)
    site.operator(quarantine_seconds=300)  # another one takes over
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 0.5)
    assert site.status()["placements"][0]["proof"]["observedBytes"] == 1300 * MIB


def test_the_log_alone_proves_where_the_driver_lists_no_processes(site: Site) -> None:
    site.operator()
    site.node(devices=CARDS)
    uses = [DeviceUse(pci_id=SECOND, source="NVML", used=9 * GIB, processes=[])]
    site.plane.report("node1", CARDS, uses=uses)
    site.apply("gemma")
    site.wait_for("Verified", "True", "BuffersOnDevice", seconds=20)
    eventually(lambda: site.status()["placements"][0]["proof"] == {"evidence": "Buffers"})
    show(site, second=[server(up(site), 1300 * MIB)])
    site.wait_for("Verified", "True", "ProcessOnDevice")
    assert len(site.pods()) == 1


def test_a_server_that_the_driver_shows_elsewhere_is_replaced_on_another_card(site: Site) -> None:
    pod = start(site)
    show(site, first=[server(pod, 1300 * MIB)])
    message = eventually(lambda: _told(site, "WrongDevice"))
    assert "the driver shows its process with" in message
    assert f"({FIRST}); the model belongs on NVIDIA GeForce RTX 4080 ({SECOND})" in message
    again = up(site, other_than=pod["metadata"]["uid"])
    assert list(site.reservations().values()) == [2 * GIB], "booked once"
    eventually(
        lambda: site.status()["placements"][0]["devices"][0]["gpu"] == GPU, what="not where it was found wanting"
    )
    show(site, first=[server(again, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving")
    site.wait_for("Verified", "True", "ProcessOnDevice")


def _told(site: Site, reason: str) -> str | None:
    found = site.condition("Verified")
    return str(found["message"]) if (found["status"], found["reason"]) == ("False", reason) else None


def test_a_log_that_lies_is_refuted_by_the_driver(site: Site) -> None:
    start(site)
    message = eventually(lambda: _told(site, "CpuFallback"), 20)
    assert "the driver shows no process of it on any card" in message
    assert "though its log says" in message


@pytest.mark.parametrize(("on_first", "on_second", "reason"), [(GIB, GIB, "SecondDevice"), (0, 3 * GIB, "OverPlan")])
def test_a_proven_server_that_spreads_is_replaced(site: Site, on_first: int, on_second: int, reason: str) -> None:
    pod = start(site)
    show(site, second=[server(pod, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving")
    show(site, first=[server(pod, on_first)] if on_first else [], second=[server(pod, on_second)])
    eventually(lambda: _told(site, reason))
    up(site, other_than=pod["metadata"]["uid"])
    assert len(site.reservations()) == 1
    eventually(lambda: any(one["reason"] == reason for one in site.client.items(site.path("", "events"))))


def test_a_silent_agent_or_a_process_that_is_not_listed_any_more_ends_no_proven_server(site: Site) -> None:
    pod = start(site)
    show(site, second=[server(pod, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving")
    show(site)
    stays(lambda: site.condition("Available")["status"] == "True", 0.7)
    site.plane.silence("node1")
    eventually(lambda: site.gpu_ready(SECOND_GPU)["reason"] == "AgentSilent", 15)
    assert site.condition("Verified")["reason"] == "ProcessOnDevice"
    assert site.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]


def test_a_pair_that_was_kept_apart_is_tried_again(site: Site) -> None:
    pod = start(site, quarantine_seconds=4)
    site.client.do("PATCH", site.path("gemma"), {"spec": {"placement": {"devices": [{"node": "node1", "index": 1}]}}})
    show(site, first=[server(pod, 1300 * MIB)])
    eventually(lambda: _told(site, "WrongDevice"))
    eventually(lambda: "kept apart until" in site.condition("Placed")["message"])
    assert site.reservations() == {}
    show(site)
    again = up(site, other_than=pod["metadata"]["uid"])
    show(site, second=[server(again, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving")
    assert site.status()["placements"][0]["devices"][0]["gpu"] == SECOND_GPU


def three_go_astray(site: Site) -> None:
    """Have three servers of the second card found on the first, so that nobody gets the second for a while."""
    pinned = {"devices": [{"node": "node1", "index": 1}]}
    names = ("a", "b", "c")
    for name in names:
        site.apply(name, placement=pinned)
    astray = [server(up(site, name), 1300 * MIB) for name in names]
    show(site, first=[one.model_copy(update={"pid": 7 + n}) for n, one in enumerate(astray)])
    eventually(lambda: site.gpu_ready(SECOND_GPU)["reason"] == "RepeatedMismatch")


def test_a_device_of_which_several_were_found_elsewhere_gets_nothing_for_a_while(site: Site) -> None:
    site.operator(quarantine_seconds=3)
    site.node(devices=CARDS)
    show(site)
    three_go_astray(site)
    assert "3 servers were found elsewhere" in site.gpu_ready(SECOND_GPU)["message"]
    assert site.gpu_ready(GPU)["status"] == "True"
    show(site)
    eventually(lambda: site.gpu_ready(SECOND_GPU)["status"] == "True", what="it is tried again")


def test_a_pair_stays_apart_when_the_operator_is_restarted(site: Site) -> None:
    pod = start(site)
    pinned = {"devices": [{"node": "node1", "index": 1}]}
    site.client.do("PATCH", site.path("gemma"), {"spec": {"placement": pinned}})
    show(site, first=[server(pod, 1300 * MIB)])
    eventually(lambda: "kept apart until" in site.condition("Placed")["message"])
    show(site)
    (told,) = eventually(lambda: site.gpu(SECOND_GPU).get("apart"))
    assert (told["deployment"], told["failures"]) == (f"{site.namespace}/gemma", 1)
    assert told["reason"] == "WrongDevice"
    assert "the driver shows its process with" in told["message"]
    before = site.condition("Placed")["message"]
    site.operator(quarantine_seconds=300)  # another one takes over
    site.apply("other", placement=pinned)
    other = up(site, "other")
    show(site, second=[server(other, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving", "other")
    assert site.condition("Placed")["message"] == before, "until the same time, for the same reason"
    assert site.pods() == []
    booted(site)
    again = up(site)
    assert record_of(again)["gpu"] == SECOND_GPU, "after a boot it is tried again"
    eventually(lambda: not site.gpu(SECOND_GPU).get("apart"))


def booted(site: Site) -> None:
    """Boot the node: another id than the one that is known."""
    for name in ("one", "another"):
        site.plane.report("node1", CARDS, boot_id=name)
        eventually(lambda name=name: site.gpu(SECOND_GPU)["bootId"] == name, what="the operator has heard of it")


def test_servers_found_elsewhere_are_counted_on_by_the_next_operator(site: Site) -> None:
    site.operator(quarantine_seconds=300)
    site.node(devices=CARDS)
    show(site)
    pinned = {"devices": [{"node": "node1", "index": 1}]}
    for name in ("a", "b"):
        site.apply(name, placement=pinned)
    astray = [server(up(site, name), 1300 * MIB) for name in ("a", "b")]
    show(site, first=[one.model_copy(update={"pid": 7 + n}) for n, one in enumerate(astray)])
    eventually(lambda: len(site.gpu(SECOND_GPU).get("mismatches", ())) == 2)
    show(site)
    site.operator(quarantine_seconds=301)
    site.settle()
    assert site.gpu_ready(SECOND_GPU)["status"] == "True"
    site.apply("c", placement=pinned)
    show(site, first=[server(up(site, "c"), 1300 * MIB)])
    eventually(lambda: site.gpu_ready(SECOND_GPU)["reason"] == "RepeatedMismatch")
    assert "3 servers were found elsewhere" in site.gpu_ready(SECOND_GPU)["message"]
    assert len(site.gpu(SECOND_GPU)["mismatches"]) == 3
    booted(site)
    eventually(lambda: not site.gpu(SECOND_GPU).get("mismatches"), what="a boot ends it")


def test_a_device_that_nobody_gets_is_not_given_away_by_the_next_operator(site: Site) -> None:
    site.operator(quarantine_seconds=300)
    site.node(devices=CARDS)
    show(site)
    three_go_astray(site)
    show(site)
    site.operator(quarantine_seconds=301)
    site.settle()
    assert site.gpu_ready(SECOND_GPU)["reason"] == "RepeatedMismatch"
    site.plane.stop_operators()
    soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat(timespec="seconds")
    apart = [{**one, "until": soon} for one in site.gpu(SECOND_GPU)["apart"]]
    site.client.do("PATCH", f"{GPUS}/{SECOND_GPU}/status", {"status": {"apart": apart}})
    site.operator(quarantine_seconds=300)
    eventually(lambda: site.gpu_ready(SECOND_GPU)["status"] == "True", what="and it ends by itself")
    eventually(lambda: not site.gpu(SECOND_GPU).get("apart"))


def test_what_strangers_use_is_told_and_not_given_away(site: Site) -> None:
    site.operator()
    site.node(devices=CARDS)
    show(site, first=[STRANGER], second=[STRANGER.model_copy(update={"bytes": 23 * GIB})])
    eventually(lambda: site.gpu()["memory"].get("foreign") == "10240Mi")
    assert site.gpu()["foreignUse"] == [{"command": "python", "memory": "10240Mi"}]
    site.apply("gemma", serving={"contextLength": 8192, "parallel": 32, "kvUnified": False})
    waits = site.wait_for("Placed", "False", "WaitingForDevice")
    assert "used by others than Paddock" in waits["message"]
    show(site)
    eventually(site.pods, what="it starts as soon as there is room")


def test_memory_of_a_pod_that_is_gone_stays_taken_until_its_process_is_gone(site: Site) -> None:
    pod = start(site)
    process = server(pod, 1300 * MIB)
    show(site, second=[process])
    site.wait_for("Available", "True", "Serving")
    site.client.delete(site.path("gemma"))
    eventually(lambda: site.gpu(SECOND_GPU)["memory"]["foreign"] == "1536Mi")
    assert not site.gpu(SECOND_GPU).get("reservations")
    show(site)
    eventually(lambda: site.gpu(SECOND_GPU)["memory"]["foreign"] == "0Mi")


def test_what_a_process_has_beside_its_buffers_is_learned(site: Site) -> None:
    pod = start(site)
    show(site, second=[server(pod, 1300 * MIB)])
    site.wait_for("Available", "True", "Serving")
    (learned,) = eventually(lambda: site.gpu(SECOND_GPU).get("learned"))
    assert learned["backend"] == "CUDA"
    assert learned["processBytes"] == 1300 * MIB - record_of(pod)["device_buffers"]
