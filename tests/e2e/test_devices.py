"""Devices named in every way: the model lands exactly there, or nowhere."""

import pytest

from e2e import api, kit
from support.cluster import GTX_1060, INTEL_PCI_ID, PCI_IDS, RTX_4080, RTX_PRO_6000

pytestmark = pytest.mark.e2e
MISSING = "GPU-00000000-0000-4000-8000-000000000000"
NAMED: dict[str, tuple[list[api.Object], str, str, str]] = {
    "uuid-4080": ([{"uuid": RTX_4080}], kit.GPU_4080, "CUDA0", PCI_IDS[RTX_4080]),
    "uuid-in-capitals": ([{"uuid": RTX_PRO_6000.upper()}], kit.GPU_6000, "CUDA0", PCI_IDS[RTX_PRO_6000]),
    "pci-1060": ([{"node": "node1", "pciId": "0000:01:00.0"}], kit.GPU_1060, "CUDA0", PCI_IDS[GTX_1060]),
    "name-4080": ([{"node": "node1", "name": "CUDA1"}], kit.GPU_4080, "CUDA0", PCI_IDS[RTX_4080]),
    "index-1060": ([{"node": "node1", "index": 0}], kit.GPU_1060, "CUDA0", PCI_IDS[GTX_1060]),
    "intel-name": ([{"node": "node1", "name": "Vulkan0"}], kit.GPU_INTEL, "Vulkan0", INTEL_PCI_ID),
    "second-choice": ([{"uuid": MISSING}, {"uuid": GTX_1060}], kit.GPU_1060, "CUDA0", PCI_IDS[GTX_1060]),
}
"""Name of the deployment: devices; GPU object, name in the pod and PCI address that must come out."""
REFUSED: dict[str, tuple[list[api.Object], str]] = {
    "no-such-uuid": ([{"uuid": MISSING}], f"names uuid {MISSING}, but none of the 4 known GPUs is that"),
    "no-such-pci": ([{"node": "node2", "pciId": "0000:01:00.0"}], "names pciId 0000:01:00.0 on node2"),
    "no-such-index": ([{"node": "node1", "index": 2}], "names index 2 on node1"),
    "no-such-name": ([{"node": "node2", "name": "CUDA1"}], "names name CUDA1 on node2"),
    "no-such-node": ([{"node": "node9", "index": 0}], "names index 0 on node9"),
}


def test_each_name_of_a_device_lands_exactly_there(namespace: str) -> None:
    for name, (devices, *_) in NAMED.items():
        kit.put(namespace, kit.deployment(name, *devices))
    for name, (devices, _) in REFUSED.items():
        kit.put(namespace, kit.deployment(name, *devices))
    found = kit.wait_available(namespace, *NAMED, seconds=120)
    pods = {pod["metadata"]["name"]: pod for pod in kit.pods(namespace)}
    for name, (_, gpu, inside, pci) in NAMED.items():
        device = kit.device_of(found[name])
        assert (device["gpu"], device["nameInPod"], device["pciId"]) == (gpu, inside, pci), name
        assert f"({pci}) holds" in kit.condition(found[name], "Verified")["message"], name
        check_pin(pods[device["podName"]], device)
    for name, (_, message) in REFUSED.items():
        placed = kit.wait_condition(namespace, name, "Placed", "False", "DeviceNotFound")
        assert message in placed["message"]
        assert kit.pods(namespace, name) == [], f"{name} was moved"
    assert len(kit.reservations(namespace)) == len(NAMED)
    kit.nothing_double_booked()


def check_pin(pod: api.Object, device: api.Object) -> None:
    """No position in a list reaches a pod of an NVIDIA card: its identifier does."""
    (container,) = pod["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    if device["backend"] == "CUDA":
        assert environment["CUDA_VISIBLE_DEVICES"] == device["uuid"]
        assert environment["NVIDIA_VISIBLE_DEVICES"] == f"runtime.nvidia.com/gpu={device['uuid']}"
        assert pod["spec"]["runtimeClassName"] == "nvidia"
    else:
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert "runtimeClassName" not in pod["spec"]


def test_integrated_graphics_only_where_allowed(free_cards: str) -> None:
    """The small card of node1 is too small, the large one is full: what is left is the processor's own graphics."""
    namespace = free_cards
    only = {"nodeSelector": {"kubernetes.io/hostname": "node1"}}
    kit.put(
        namespace,
        kit.deployment("always", placement={**only, "allowIntegrated": "Always"}),
        kit.deployment("full", {"uuid": RTX_4080}, serving=kit.MOST),
    )
    for name in ("always", "full"):
        kit.wait_condition(namespace, name, "Placed", "True")
    kit.put(namespace, kit.deployment("never", serving=kit.MIDDLE, placement={**only, "allowIntegrated": "Never"}))
    message = kit.wait_condition(namespace, "never", "Placed", "False", "WaitingForDevice")["message"]
    assert "TypeNotAllowed" in message
    kit.put(namespace, kit.deployment("auto", serving=kit.MIDDLE, placement=only))
    placed = kit.wait_condition(namespace, "auto", "Placed", "True")
    assert placed["message"].startswith("Intel(R) UHD Graphics 770")
    assert kit.device_of(kit.mdep(namespace, "auto"))["gpu"] == kit.GPU_INTEL
    assert kit.device_of(kit.mdep(namespace, "always"))["gpu"] == kit.GPU_4080, "the largest of all"
    kit.wait_available(namespace, "auto", "always")
    (held,) = (one for one in kit.reservations(namespace, kit.GPU_INTEL).values())
    (pod,) = kit.pods(namespace, "auto")
    asked = pod["spec"]["containers"][0]["resources"]["requests"]["memory"]
    assert kit.mebibytes(asked) * kit.MIB >= held["bytes"] + held["hostBytes"], "its memory is the machine's"
