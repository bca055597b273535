"""Holder pods beside a vendor's device plugin, on a real kubelet: several real servers share a card that is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.local import LocalCluster
from e2e import api, installation, kit
from support.client import stays
from support.cluster import GTX_1060, RTX_4080, eventually, kubectl
from support.vendor_plugin import RESOURCE, VendorPlugin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.api import Object

pytestmark = pytest.mark.e2e
NODE1 = {"nodeSelector": {"kubernetes.io/hostname": "node1"}, "allowIntegrated": "Never"}
VALUES = {
    "agent": {"podResources": True},
    "holderPods": {"enabled": True},
    "operator": {**installation.VALUES["operator"], "env": {"PADDOCK_HOLDER_IDLE_SECONDS": "4"}},
}


def advertised() -> int:
    """Give how many cards node1 advertises."""
    return int(kit.named("nodes", None, "node1")["status"]["allocatable"].get(RESOURCE, "0"))


def holders() -> dict[str, Object]:
    """Give the holders that are not on their way out, by name."""
    found = api.listed("pods", kit.SYSTEM, "app.kubernetes.io/component=card-holder")
    return {one["metadata"]["name"]: one for one in found if "deletionTimestamp" not in one["metadata"]}


@pytest.fixture(scope="module")
def plugin(whole_fleet: None) -> Iterator[VendorPlugin]:  # noqa: ARG001 the plugin knows nothing of what runs
    """Run a plugin for both cards of node1, and have the operator make holders."""
    made = VendorPlugin(LocalCluster().node("node1").node.folder, (GTX_1060, RTX_4080), (GTX_1060, RTX_4080))
    try:
        made.start()
        installation.upgrade(values=VALUES)
        installation.wait_led()
        installation.wait_listed()
        eventually("the node advertises its cards", lambda: advertised() == 2, 30)
        yield made
        eventually("no holder is left", lambda: not holders(), 60)
    finally:
        made.stop()
        installation.upgrade()
        installation.wait_led()
        installation.wait_listed()
        eventually("the node advertises none", lambda: advertised() == 0, 30)


@pytest.fixture
def cards(free_cards: str, plugin: VendorPlugin) -> VendorPlugin:  # noqa: ARG001 nothing of others is left
    """Give the plugin when it has both cards."""
    eventually("no holder of the test before is left", lambda: not holders(), 60)
    plugin.allocated.clear()
    plugin.offer(GTX_1060, RTX_4080)
    eventually("both cards are left", lambda: advertised() == 2, 30)
    return plugin


def asks_for_a_card(name: str) -> Object:
    """Give a pod of somebody else that asks the plugin for a card."""
    other = kit.client_pod(name, "node1", "import time; time.sleep(600)")
    other["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    return other


def test_servers_share_a_card_that_the_vendors_plugin_counts(namespace: str, cards: VendorPlugin) -> None:
    for name in ("one", "two"):
        kit.put(namespace, kit.deployment(name, placement=NODE1))
    served = kit.wait_available(namespace, "one", "two")
    assert len(cards.allocated) == 1, "one card will do"
    (holder,) = holders()
    for one in served.values():
        assert kit.device_of(one)["uuid"] == cards.allocated[0]
        (placed,) = one["status"]["placements"]
        assert placed["binding"]["binder"] == "VendorPlugin"
        assert holder in placed["binding"]["reason"]
        assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    for name in served:
        status, answer = kit.chat(kit.address_of(namespace, name))
        assert status == 200, answer
    for name in ("other", "late"):
        kit.put(namespace, asks_for_a_card(name))
        if name == "other":
            eventually("the other card is somebody else's", lambda: len(cards.allocated) == 2, 30)
    assert set(cards.allocated) == {GTX_1060, RTX_4080}
    eventually("a third has to wait", lambda: RESOURCE in str(kit.named("pods", namespace, "late")["status"]), 30)
    left = GTX_1060 if cards.allocated[1] == GTX_1060 else RTX_4080
    kit.put(namespace, kit.deployment("named", {"uuid": left}))
    told = kit.wait_condition(namespace, "named", "Placed", "False", "NoDevice")["message"]
    assert f"the plugin gave it to {namespace}/other" in told
    kit.nothing_double_booked()
    kubectl("delete", "modeldeployment", "-n", namespace, "--all")
    kubectl("delete", "pod", "-n", namespace, "other", "--grace-period=1")
    eventually("the card is given back", lambda: not holders(), 60)


def test_a_named_card_is_got_wherever_the_plugin_begins(namespace: str, cards: VendorPlugin) -> None:
    cards.offer(GTX_1060)
    eventually("one card is left", lambda: advertised() == 1, 30)
    kit.put(namespace, kit.deployment("named", {"uuid": RTX_4080}))
    eventually("the plugin gave the wrong one", lambda: cards.allocated == [GTX_1060], 30)
    cards.offer(GTX_1060, RTX_4080)
    named = kit.wait_available(namespace, "named")["named"]
    assert kit.device_of(named)["uuid"] == RTX_4080
    eventually("the wrong one is given back", lambda: len(holders()) == 1, 60)


def test_servers_outlive_a_killed_kubelet_and_a_removed_holder(namespace: str, cards: VendorPlugin) -> None:
    kit.put(namespace, kit.deployment("one", placement=NODE1))
    one = kit.wait_available(namespace, "one")["one"]
    uuid = kit.device_of(one)["uuid"]
    before, holder = kit.containers(namespace), next(iter(holders()))
    LocalCluster().processes.restart("node1-kubelet", sig=9)
    LocalCluster().node("node1").wait_healthy()
    eventually("the kubelet forgot the plugin", lambda: advertised() == 0, 60)
    stays(lambda: list(holders()) == [holder], 8)  # longer than an idle one has
    cards.start()
    eventually("the plugin is known again", lambda: advertised() == 2, 60)
    assert list(holders()) == [holder], "it has its card still"
    kit.put(namespace, kit.deployment("two", placement=NODE1))
    assert kit.device_of(kit.wait_available(namespace, "two")["two"])["uuid"] == uuid
    assert kit.containers(namespace).items() >= before.items()
    cards.offer(uuid)
    cards.allocated.clear()
    kubectl("delete", "pod", "-n", kit.SYSTEM, holder)
    eventually("another holder has the same card", lambda: cards.allocated == [uuid] and len(holders()) == 1, 60)
    kit.wait_available(namespace, "one", "two")
    assert kit.containers(namespace).items() >= before.items(), "no server was ended for it"
    kit.nothing_double_booked()
