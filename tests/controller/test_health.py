"""Devices that are out of order, withheld or booted anew: told, left alone, and over as soon as it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.api.report import DeviceTrouble
from support.client import eventually, stays
from support.harness import GPUS
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from support.client import JSON
    from support.site import Site

CARDS = [card(0, 24), card(1, 16)]
FIRST = "0000:01:00.0"
SECOND_GPU = "node1-0000-02-00-0"


def two(site: Site) -> JSON:
    """Have a server on the first, larger of two cards."""
    site.operator()
    site.node(devices=CARDS)
    pod = site.serve("a")
    assert site.status("a")["placements"][0]["devices"][0]["gpu"] == GPU
    return pod


def quarantine(site: Site, *, on: bool) -> None:
    site.client.do("PATCH", f"{GPUS}/{GPU}", {"spec": {"quarantine": on}})


def test_quarantine_by_its_owner_refuses_what_is_new_and_ends_nothing(site: Site) -> None:
    pod = two(site)
    quarantine(site, on=True)
    eventually(lambda: site.gpu_ready()["reason"] == "Quarantined")
    site.apply("b", placement={"devices": [{"node": "node1", "index": 0}]})
    assert "spec.quarantine is true" in site.wait_for("Placed", "False", name="b")["message"]
    site.serve("c")
    assert site.status("c")["placements"][0]["devices"][0]["gpu"] == SECOND_GPU
    assert site.condition("Available", "a")["status"] == "True"
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 0.5)
    quarantine(site, on=False)
    eventually(lambda: site.gpu_ready()["status"] == "True")
    site.wait_for("Available", "True", "Serving", "b")


def test_a_card_in_trouble_gets_nothing_new_and_a_server_that_ended_there_moves(site: Site) -> None:
    pod = two(site)
    lost = DeviceTrouble(pci_id=FIRST, code="Lost", message="the driver says: GPU is lost")
    site.plane.report("node1", CARDS, troubles=[lost])
    eventually(lambda: site.gpu_ready()["reason"] == "DeviceLost")
    stays(lambda: site.condition("Available", "a")["status"] == "True", 0.7)
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"], "it still answers"
    site.plane.background.call(site.kubelet.crash(f"{site.namespace}/{pod['metadata']['name']}"))
    eventually(lambda: [one["metadata"]["uid"] for one in site.pods("a")] not in ([], [pod["metadata"]["uid"]]))
    site.wait_for("Available", "True", "Serving", "a")
    assert site.status("a")["placements"][0]["devices"][0]["gpu"] == SECOND_GPU
    assert len(site.reservations()) == 1
    site.plane.report("node1", CARDS)
    eventually(lambda: site.gpu_ready()["status"] == "True")


def test_an_error_of_a_card_is_told_with_the_drivers_words(site: Site) -> None:
    site.operator()
    site.node(devices=CARDS)
    site.plane.report("node1", CARDS, troubles=[DeviceTrouble(pci_id=FIRST, code="Xid", message="Xid 48")])
    eventually(lambda: site.gpu_ready()["reason"] == "DeviceUnhealthy")
    assert site.gpu_ready()["message"] == "Xid 48"
    assert site.gpu_ready(SECOND_GPU)["status"] == "True", "its neighbour is not to blame"
    site.plane.report("node1", CARDS)
    eventually(lambda: site.gpu_ready()["status"] == "True")


def test_a_card_that_is_lost_and_not_listed_is_told_as_lost(site: Site) -> None:
    site.operator()
    site.node(devices=CARDS)
    lost = DeviceTrouble(pci_id=FIRST, code="Lost", message="the driver says: GPU is lost")
    site.plane.report("node1", CARDS[1:], troubles=[lost])
    eventually(lambda: site.gpu_ready()["reason"] == "DeviceLost")
    site.plane.report("node1", CARDS)
    eventually(lambda: site.gpu_ready()["status"] == "True")


def test_a_node_that_is_not_ready_is_the_reason_that_its_devices_tell(site: Site) -> None:
    pod = two(site)
    ready(site, "False")
    eventually(lambda: site.gpu_ready()["reason"] == "NodeNotReady")
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert len(site.reservations()) == 1
    ready(site, "True")
    eventually(lambda: site.gpu_ready()["status"] == "True")


def ready(site: Site, status: str) -> None:
    condition = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    content = "application/strategic-merge-patch+json"
    site.client.do("PATCH", "/api/v1/nodes/node1/status", condition, content)


def test_a_boot_is_told_and_nothing_is_booked_twice(site: Site) -> None:
    pod = two(site)
    site.plane.report("node1", CARDS, boot_id="one")
    eventually(lambda: site.gpu().get("bootId") == "one")
    site.plane.silence("node1")
    eventually(lambda: site.gpu_ready()["reason"] == "AgentSilent", 15)
    site.plane.background.call(site.kubelet.restart(f"{site.namespace}/{pod['metadata']['name']}"))
    site.plane.wake("node1")
    site.plane.report("node1", CARDS, boot_id="two")
    eventually(lambda: site.gpu().get("bootId") == "two" and site.gpu_ready()["status"] == "True", 15)
    site.wait_for("Available", "True", "Serving", "a")
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert site.kubelet.log_reads[f"{site.namespace}/{pod['metadata']['name']}"] == 2, "proven anew"
    assert len(site.reservations()) == 1
