"""Beside the device plugin of a vendor, on a real kubelet: a card by number, learned by podresources, then proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.local import NO_PLUGIN, LocalCluster
from e2e import api, installation, kit
from support.cluster import GTX_1060, RTX_4080, eventually, kubectl
from support.vendor_plugin import RESOURCE, VendorPlugin

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e
NODE1 = {"nodeSelector": {"kubernetes.io/hostname": "node1"}, "allowIntegrated": "Never"}
VALUES = {"agent": {"podResources": True}}


def advertised() -> int:
    """Give how many cards node1 advertises."""
    return int(kit.named("nodes", None, "node1")["status"]["allocatable"].get(RESOURCE, "0"))


def listed() -> int | None:
    """Give the same where node1 lists the resource; else None."""
    found = kit.named("nodes", None, "node1")["status"]["allocatable"].get(RESOURCE)
    return None if found is None else int(found)


@pytest.fixture(scope="module")
def plugin(whole_fleet: None) -> Iterator[VendorPlugin]:  # noqa: ARG001 the plugin knows nothing of what runs
    """Run a plugin for both cards of node1, and have the agents ask the kubelet."""
    made = VendorPlugin(LocalCluster().node("node1").node.folder, (GTX_1060, RTX_4080), (GTX_1060, RTX_4080))
    try:
        made.start()
        installation.upgrade(values=VALUES)
        installation.wait_led()
        installation.wait_listed()
        eventually("the node advertises its cards", lambda: advertised() == 2, 30)
        yield made
    finally:
        made.stop()
        installation.upgrade()
        installation.wait_led()
        installation.wait_listed()
        eventually("the node advertises none", lambda: advertised() == 0, 30)


def test_a_card_is_given_by_number_learned_and_proven(free_cards: str, plugin: VendorPlugin) -> None:
    namespace = free_cards
    plugin.offer(GTX_1060)  # not the one with more memory, which is planned with
    eventually("one card is left", lambda: advertised() == 1, 30)
    kit.put(namespace, kit.deployment("gemma", source=kit.GEMMA, placement={**NODE1, "policy": "MostMemory"}))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert plugin.allocated == [GTX_1060]
    (pod,) = kit.pods(namespace, "gemma")
    assert pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] == "1"
    (placed,) = one["status"]["placements"]
    assert (placed["binding"]["binder"], placed["binding"]["exactDevice"]) == ("VendorPlugin", False)
    assert kit.device_of(one)["uuid"] == GTX_1060
    assert "planned with NVIDIA GeForce RTX 4080" in placed["reason"]
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert [each["gpu"] for each in kit.reservations(namespace).values()] == [kit.GPU_1060]
    status, answer = kit.chat(kit.address_of(namespace, "gemma"))
    assert status == 200, answer
    named = kit.deployment("named", {"uuid": RTX_4080})
    kit.put(namespace, named)
    told = kit.wait_condition(namespace, "named", "Placed", "False", "NoDevice")["message"]
    assert "picks the card" in told
    kubectl("delete", "modeldeployment", "-n", namespace, "--all")
    eventually("nothing is reserved", lambda: not kit.reservations(namespace), 60)
    kit.nothing_double_booked()


def test_what_others_ask_for_is_not_given_twice(free_cards: str, plugin: VendorPlugin) -> None:
    """The scheduler counts: with one card left and that in use, a second server waits as a pod, and says why."""
    namespace = free_cards
    plugin.allocated.clear()
    plugin.offer(RTX_4080)
    eventually("one card is left", lambda: advertised() == 1, 30)
    other = kit.client_pod("other", "node1", "import time; time.sleep(600)")
    other["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    kit.put(namespace, other)
    eventually("the other pod has it", lambda: plugin.allocated == [RTX_4080], 30)
    kit.put(namespace, kit.deployment("waits", placement=NODE1))
    one = kit.wait_condition(namespace, "waits", "Available", "False", message=RESOURCE)
    assert "Insufficient" in one["message"]
    kubectl("delete", "pod", "-n", namespace, "other", "--grace-period=1")
    kit.wait_available(namespace, "waits")
    assert plugin.allocated == [RTX_4080, RTX_4080]
    assert api.listed("pods", namespace, "app.kubernetes.io/component=model-server")


def test_a_kubelet_that_is_started_anew_gives_no_card_away(free_cards: str, plugin: VendorPlugin) -> None:
    """Until its plugin is back a kubelet advertises 0; the RuntimeClass gives the cards once somebody says so alone."""
    namespace = free_cards
    kubectl("label", "node", "node1", NO_PLUGIN.partition("=")[0] + "-")
    try:
        plugin.stop()
        LocalCluster().processes.restart("node1-kubelet", sig=9)
        LocalCluster().node("node1").wait_healthy()
        eventually("the node lists none", lambda: listed() == 0, 60)
        kit.put(namespace, kit.deployment("soon", placement=NODE1))
        told = kit.wait_condition(namespace, "soon", "Placed", "False", "NoDevice")["message"]
        assert f"lists {RESOURCE}, 0 now" in told
        assert not kit.pods(namespace, "soon")
    finally:
        kubectl("label", "node", "node1", NO_PLUGIN)
    one = kit.wait_available(namespace, "soon")["soon"]
    assert one["status"]["placements"][0]["binding"]["binder"] == "RuntimeClass"
