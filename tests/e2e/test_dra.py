"""Dynamic resource allocation, with a small driver for both real kubelets: a claim for each server on its card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.local import LocalCluster
from e2e import api, installation, kit
from support.cluster import GTX_1060, PCI_IDS, RTX_4080, RTX_PRO_6000, apply, eventually, kubectl
from support.dra_driver import DRIVER, Card, Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e
CARDS = {
    "node1": [Card(uuid, PCI_IDS[uuid]) for uuid in (GTX_1060, RTX_4080)],
    "node2": [Card(RTX_PRO_6000, PCI_IDS[RTX_PRO_6000])],
}
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "test-gpus"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
VALUES = {
    "dra": {"enabled": True, "deviceClasses": {DRIVER: "test-gpus"}},
    "operator": {**installation.VALUES["operator"], "env": {"PADDOCK_QUARANTINE_SECONDS": "3"}},
}


def claim_of(namespace: str, name: str) -> api.Object:
    return kit.named("resourceclaims", namespace, name)


@pytest.fixture(scope="module")
def drivers(whole_fleet: None) -> Iterator[dict[str, Driver]]:  # noqa: ARG001 a card has one server at a time
    """Run a driver for the cards of each node, and have the operator use what they offer."""
    apply(CLASS)
    made = {
        node: Driver(node, LocalCluster().node(node).node.folder, cards, claim_of, apply)
        for node, cards in CARDS.items()
    }
    try:
        for one in made.values():
            one.start()
        installation.upgrade(values=VALUES)
        installation.wait_led()
        installation.wait_listed()
        yield made
        eventually("every claim is released", lambda: not any(one.prepared for one in made.values()), 60)
    finally:
        installation.upgrade()
        installation.wait_led()
        for one in made.values():
            one.stop()
        kubectl("delete", "deviceclass", CLASS["metadata"]["name"], "--ignore-not-found")
        kubectl("delete", "resourceslices", *(f"{node}-{DRIVER}" for node in made), "--ignore-not-found")
        installation.wait_listed()


def claims(namespace: str) -> list[api.Object]:
    return api.listed("resourceclaims", namespace)


def given(claim: api.Object) -> list[tuple[str, str]]:
    """Give node and name of what a claim was given."""
    results = claim["status"]["allocation"]["devices"]["results"]
    return [(one["pool"], one["device"]) for one in results]


def test_each_server_has_a_claim_for_the_card_that_was_chosen(namespace: str, drivers: dict[str, Driver]) -> None:
    kit.put(
        namespace,
        kit.deployment("chosen", {"uuid": RTX_4080}, source=kit.GEMMA),
        kit.deployment("other", {"uuid": RTX_PRO_6000}),
    )
    found = kit.wait_available(namespace, "chosen", "other")
    assert sorted(given(one) for one in claims(namespace)) == [[("node1", "gpu-1")], [("node2", "gpu-0")]]
    assert all(one.prepared for one in drivers.values()), "both kubelets asked their driver"
    (pod,) = kit.pods(namespace, "chosen")
    assert "runtimeClassName" not in pod["spec"]
    (placed,) = found["chosen"]["status"]["placements"]
    assert (placed["binding"]["binder"], placed["binding"]["exactDevice"]) == ("Dra", True)
    assert kit.device_of(found["chosen"])["uuid"] == RTX_4080
    assert kit.condition(found["chosen"], "Verified")["reason"] == "ProcessOnDevice"
    status, answer = kit.chat(kit.address_of(namespace, "chosen"))
    assert status == 200, answer
    kit.put(namespace, kit.deployment("second", {"uuid": RTX_4080}))
    told = kit.wait_condition(namespace, "second", "Placed", "False", "WaitingForDevice")["message"]
    assert "one pod at a time" in told
    kubectl("delete", "modeldeployment", "-n", namespace, "chosen")
    kit.wait_available(namespace, "second")
    kubectl("delete", "modeldeployment", "-n", namespace, "--all")
    eventually("the claims went with their pods", lambda: not claims(namespace), 60)
    kit.nothing_double_booked()


def test_a_claim_that_was_given_another_card_is_noticed_and_made_anew(
    namespace: str, drivers: dict[str, Driver]
) -> None:
    driver = drivers["node1"]

    def count_anew(one: Driver) -> None:
        """Have the cards change places between allocation and start, as after a boot with another enumeration."""
        one.before_prepare = lambda _: None
        one.offer([*reversed(one.cards)])

    driver.before_prepare = count_anew
    kit.put(namespace, kit.deployment("gemma", {"uuid": GTX_1060}, source=kit.GEMMA))
    (before,) = eventually("a claim", lambda: claims(namespace), 30)
    told = kit.wait_condition(namespace, "gemma", "Verified", "False", "WrongDevice")["message"]
    assert f"was given gpu-0 of {DRIVER} on node1 ({RTX_4080} at {PCI_IDS[RTX_4080]})" in told
    assert f"the model belongs on {GTX_1060} at {PCI_IDS[GTX_1060]}" in told
    kit.wait_available(namespace, "gemma")
    (after,) = (one for one in claims(namespace) if one["metadata"]["name"] != before["metadata"]["name"])
    assert given(after) == [("node1", "gpu-1")], "where the card is now"
    kubectl("delete", "modeldeployment", "-n", namespace, "gemma")
    eventually("the claim went with its pod", lambda: not claims(namespace), 60)
    driver.offer(CARDS["node1"])
