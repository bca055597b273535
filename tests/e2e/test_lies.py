"""A backend that lies about where the model is gets no traffic, and the status says what it did."""

from collections.abc import Iterator

import pytest

from e2e import kit
from support.cluster import (
    GTX_1060,
    INTEL_PCI_ID,
    PCI_IDS,
    RTX_4080,
    RTX_PRO_6000,
    clear_lies,
    eventually,
    models_folder,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
def lies(namespace: str) -> Iterator[str]:
    """Have the large card of node1 open its neighbour, the small one use the processor, and others have no memory."""
    for node, rules in {
        "node1": f"{RTX_4080} other\n{GTX_1060} cpu\n{INTEL_PCI_ID} oom\n",
        "node2": f"{RTX_PRO_6000} oom\n",
    }.items():
        file = models_folder(node) / ".pretend-lies"
        file.write_text(rules)
        file.chmod(0o644)
    yield namespace
    for node in kit.NODES:
        clear_lies(node)
    kit.believe()


def test_a_lying_backend_never_becomes_ready(lies: str) -> None:
    namespace = lies
    kit.put(
        namespace,
        kit.deployment("other", {"uuid": RTX_4080}, source=kit.GEMMA),
        kit.deployment("cpu", {"uuid": GTX_1060}, source=kit.GEMMA),
        kit.deployment("oom", {"uuid": RTX_PRO_6000}, source=kit.GEMMA),
        kit.deployment("oom-vulkan", {"node": "node1", "pciId": INTEL_PCI_ID}),
    )
    other = kit.wait_condition(namespace, "other", "Verified", "False", "WrongDevice")["message"]
    assert f"NVIDIA GeForce GTX 1060 6GB ({PCI_IDS[GTX_1060]}) holds" in other
    assert f"the model belongs on NVIDIA GeForce RTX 4080 Laptop GPU ({PCI_IDS[RTX_4080]})" in other
    cpu = kit.wait_condition(namespace, "cpu", "Verified", "False", "CpuFallback")["message"]
    assert "no weights are on the device" in cpu
    assert "in host memory" in cpu
    assert f"it belongs on NVIDIA GeForce GTX 1060 6GB ({PCI_IDS[GTX_1060]})" in cpu
    for name in ("oom", "oom-vulkan"):
        told = kit.wait_condition(namespace, name, "Available", "False", "OutOfMemory")["message"]
        assert "0 of 1 replicas ready" in told
        assert "alloc" in told, "the server's own words"
    check_never_ready(namespace, ("oom", "oom-vulkan"))
    check_replaced(namespace, ("other", "cpu"))


def check_never_ready(namespace: str, names: tuple[str, ...]) -> None:
    """No pod was Ready for a moment and no Service has an address."""
    for name in names:
        (pod,) = kit.pods(namespace, name)
        (ready,) = (one for one in pod["status"]["conditions"] if one["type"] == "Ready")
        (initialized,) = (one for one in pod["status"]["conditions"] if one["type"] == "Initialized")
        assert (ready["status"], ready["lastTransitionTime"]) == ("False", initialized["lastTransitionTime"])
        assert not kit.addresses(namespace, name)


def check_replaced(namespace: str, names: tuple[str, ...]) -> None:
    """Their pods are gone, they hold nothing, and the status goes on telling what they did."""
    eventually("the pods of both liars are gone", lambda: not any(kit.pods(namespace, name) for name in names))
    for name in names:
        one = kit.mdep(namespace, name)
        available, verified = kit.condition(one, "Available"), kit.condition(one, "Verified")
        assert available["reason"] in ("WrongDevice", "CpuFallback")
        assert available["lastTransitionTime"] <= verified["lastTransitionTime"], "it was never available"
        assert "kept apart until" in kit.wait_condition(namespace, name, "Placed", "False", "NoDevice")["message"]
        assert not kit.addresses(namespace, name)
    assert not any(one["deployment"].endswith(("/other", "/cpu")) for one in kit.reservations(namespace).values())
