"""Cards and nodes that fail while servers run: told, nothing new placed, nothing healthy ended, over by itself."""

import pytest

from e2e import kit
from e2e.test_nodes import keep_operator_off, not_ready
from support.cluster import (
    INTEL_PCI_ID,
    RTX_4080,
    RTX_PRO_6000,
    clear_lies,
    eventually,
    kubectl,
    node_down,
    node_up,
    set_lie,
)

pytestmark = pytest.mark.e2e
INTEL = {"node": "node1", "pciId": INTEL_PCI_ID}


def is_ready(gpu: str) -> None:
    """Wait until a GPU is usable again."""
    eventually(f"{gpu} is Ready", lambda: kit.gpu_ready(gpu)["status"] == "True", 60)


def test_an_xid_error_keeps_new_models_off_a_card_for_a_while(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    kit.put(namespace, kit.deployment("stays", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "stays")
    before = kit.containers(namespace)
    set_lie("node1", "xid=79", device=RTX_4080)
    not_ready(kit.GPU_4080, "DeviceUnhealthy", "Xid 79, the card fell off the bus")
    assert kit.gpu_ready(kit.GPU_1060)["status"] == "True", "its neighbour is not to blame"
    kit.put(namespace, kit.deployment("waits", {"uuid": RTX_4080}))
    kit.wait_condition(namespace, "waits", "Placed", "False", "NoDevice")
    assert kit.condition(kit.mdep(namespace, "stays"), "Available")["status"] == "True"
    assert kit.chat(kit.address_of(namespace, "stays"))[0] == 200
    clear_lies("node1")
    is_ready(kit.GPU_4080)
    kit.wait_available(namespace, "stays", "waits")
    assert kit.containers(namespace).items() >= before.items(), "a running server was touched"
    kit.nothing_double_booked()


def test_an_error_that_a_program_caused_is_nobody_elses(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    """Told after one that counts, so that it was surely heard: the card is sound once that one is over."""
    set_lie("node1", "xid=48", device=RTX_4080)
    not_ready(kit.GPU_4080, "DeviceUnhealthy", "Xid 48")
    set_lie("node1", "xid=43", device=RTX_4080)
    is_ready(kit.GPU_4080)
    kit.put(namespace, kit.deployment("comes", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "comes")


def test_a_device_that_disappears_from_the_registry_and_returns(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    kit.put(namespace, kit.deployment("stays", INTEL))
    kit.wait_available(namespace, "stays")
    before, held = kit.containers(namespace), kit.reservations(namespace, kit.GPU_INTEL)
    set_lie("node1", "lost", device=INTEL_PCI_ID)
    not_ready(kit.GPU_INTEL, "NotListed", "does not list it any more")
    kit.put(namespace, kit.deployment("waits", INTEL))
    kit.wait_condition(namespace, "waits", "Placed", "False", "NoDevice")
    assert kit.chat(kit.address_of(namespace, "stays"))[0] == 200
    assert kit.reservations(namespace, kit.GPU_INTEL) == held, "its memory is kept for it"
    clear_lies("node1")
    is_ready(kit.GPU_INTEL)
    kit.wait_available(namespace, "stays", "waits")
    assert kit.containers(namespace).items() >= before.items(), "a running server was touched"
    kit.nothing_double_booked()


def test_a_pair_is_kept_apart_by_the_next_operator_too(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    set_lie("node1", "other", device=RTX_4080)
    kit.put(namespace, kit.deployment("liar", {"uuid": RTX_4080}, source=kit.GEMMA))
    told = kit.wait_condition(namespace, "liar", "Placed", "False", message="kept apart until")["message"]
    (apart,) = kit.named("gpus", None, kit.GPU_4080)["status"]["apart"]
    assert (apart["deployment"], apart["reason"]) == (f"{namespace}/liar", "WrongDevice")
    leader = kit.named("leases", kit.SYSTEM, "paddock-operator")["spec"]["holderIdentity"]
    kubectl("delete", "pod", "-n", kit.SYSTEM, leader)
    eventually(
        "another operator leads",
        lambda: kit.named("leases", kit.SYSTEM, "paddock-operator")["spec"].get("holderIdentity") not in ("", leader),
        60,
    )
    kit.put(namespace, kit.deployment("next", INTEL))
    kit.wait_available(namespace, "next")  # the new one has begun to decide
    assert kit.condition(kit.mdep(namespace, "liar"), "Placed")["message"] == told
    assert kit.pods(namespace, "liar") == []
    assert kit.named("gpus", None, kit.GPU_4080)["status"]["apart"] == [apart]
    kubectl("delete", "mdep", "liar", "-n", namespace)
    eventually("it is forgotten", lambda: not kit.named("gpus", None, kit.GPU_4080)["status"].get("apart"), 20)


def test_a_node_that_was_booted(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    kit.put(namespace, kit.deployment("rides", {"uuid": RTX_PRO_6000}), kit.deployment("safe", {"uuid": RTX_4080}))
    found = kit.wait_available(namespace, "rides", "safe")
    rides, safe = (kit.device_of(found[name])["podName"] for name in ("rides", "safe"))
    before = kit.containers(namespace)
    keep_operator_off("node2")
    node_down("node2", with_pods=True)
    name = kit.boot("node2")
    node_up("node2")
    eventually("the boot is told", lambda: kit.gpus()[kit.GPU_6000]["status"].get("bootId") == name, 90)
    is_ready(kit.GPU_6000)
    kit.wait_available(namespace, "rides", seconds=120)
    after = kit.containers(namespace)
    assert after[safe] == before[safe], "the other node was not booted"
    one = kit.mdep(namespace, "rides")
    assert kit.device_of(one)["gpu"] == kit.GPU_6000
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice", "proven anew"
    if kit.device_of(one)["podName"] == rides:
        assert after[rides] != before[rides]
    assert len(kit.reservations(namespace)) == 2
    kit.nothing_double_booked()
