"""How pods get their device, on a real API server: by what nodes advertise, their owners say, and agents have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddock.api.binding import DevicePlugin
from support.client import eventually, stays
from support.harness import GPUS, STRATEGIC
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from paddock.api.report import ListedDevice
    from support.site import Site

RESOURCE = "gpu.paddock.dev/uuid-1"


def advertise(site: Site, node: str, **resources: str) -> None:
    """Have a node advertise extended resources."""
    status = {"capacity": resources, "allocatable": resources}
    site.client.do("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, STRATEGIC)


def plugged(*, registered: bool = True, **fields: Any) -> ListedDevice:
    """Give a card of 16 GiB that the agent's plugin gives out."""
    given: dict[str, Any] = {"resource": RESOURCE, "granules": 64, "hands": "Cdi", "registered": registered, **fields}
    return card(0, 16).model_copy(update={"plugin": DevicePlugin.model_validate(given)})


def binding(site: Site, name: str = "gemma") -> dict[str, Any]:
    (placed,) = site.status(name)["placements"]
    return dict(placed["binding"])


def test_a_card_that_the_vendors_plugin_gives_away_too_is_nobodys_until_its_node_is_dedicated(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve("before")
    assert binding(site, "before") == {
        "binder": "RuntimeClass",
        "reason": "RuntimeClass nvidia gives the card by its UUID",
        "exactDevice": True,
    }
    advertise(site, "node1", **{"nvidia.com/gpu": "1"})
    site.apply("late")
    told = site.wait_for("Placed", "False", "NoDevice", "late")["message"]
    assert "the node advertises nvidia.com/gpu and is not declared dedicated" in told
    there = eventually(lambda: site.pods("before"))
    assert there[0]["metadata"]["uid"] == pod["metadata"]["uid"], "what runs stays"
    labels = {"metadata": {"labels": {"paddock.dev/dedicated": "true"}}}
    site.client.do("PATCH", "/api/v1/nodes/node1", labels)
    site.wait_for("Available", "True", "Serving", "late")
    assert "is dedicated although it advertises nvidia.com/gpu" in binding(site, "late")["reason"]


def test_a_kubelet_that_is_started_anew_gives_no_card_away(site: Site) -> None:
    """It advertises 0 until the vendor's plugin has come back; afterwards only what a person says gives the cards."""
    site.operator()
    site.node()
    advertise(site, "node1", **{"nvidia.com/gpu": "1"})
    site.apply("first")
    site.wait_for("Placed", "False", "NoDevice", "first")
    advertise(site, "node1", **{"nvidia.com/gpu": "0"})
    eventually(lambda: "lists nvidia.com/gpu, 0 now" in site.wait_for("Placed", "False", name="first")["message"])
    site.apply("second")
    site.wait_for("Placed", "False", "NoDevice", "second")
    assert not site.pods("first")
    assert not site.pods("second")
    labels = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}}
    site.client.do("PATCH", "/api/v1/nodes/node1", labels)
    site.wait_for("Available", "True", "Serving", "first")


def test_a_resource_that_is_taken_off_its_node_is_nobodys(site: Site) -> None:
    site.operator()
    site.node()
    advertise(site, "node1", **{"nvidia.com/gpu": "0"})
    site.apply()
    site.wait_for("Placed", "False", "NoDevice")
    gone: dict[str, Any] = {"nvidia.com/gpu": None}
    status = {"capacity": gone, "allocatable": gone}
    site.client.do("PATCH", "/api/v1/nodes/node1/status", {"status": status}, STRATEGIC)
    site.wait_for("Available", "True", "Serving")


def test_the_owner_of_a_gpu_says_how_pods_get_it(site: Site) -> None:
    site.operator()
    site.node()
    site.client.do("PATCH", f"{GPUS}/{GPU}", {"spec": {"binder": "DevicePlugin"}})
    site.apply()
    assert "the GPU's spec.binder is DevicePlugin" in site.wait_for("Placed", "False", "NoDevice")["message"]
    site.client.do("PATCH", f"{GPUS}/{GPU}", {"spec": {"binder": "RuntimeClass"}})
    site.wait_for("Available", "True", "Serving")
    assert binding(site)["reason"] == "the GPU's spec.binder says so"


def test_a_pod_asks_the_agents_plugin_for_the_memory_that_is_reserved(site: Site) -> None:
    site.operator()
    site.node(devices=[plugged()])
    pod = site.serve()
    assert binding(site)["binder"] == "DevicePlugin"
    (size,) = site.reservations().values()
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {RESOURCE: str(size // (256 * 1024**2))}
    assert resources["requests"].items() >= resources["limits"].items()
    assert "runtimeClassName" not in pod["spec"]
    stored = site.client.get(f"{GPUS}/{GPU}")
    assert stored is not None
    told = {"resource": RESOURCE, "granules": 64, "hands": "Cdi", "groups": [], "registered": True}
    assert stored["status"]["plugin"] == told


def test_while_the_kubelet_does_not_know_the_plugin_nothing_new_comes_and_what_runs_stays(site: Site) -> None:
    site.operator()
    site.node(devices=[plugged()])
    pod = site.serve()
    site.plane.report("node1", [plugged(registered=False)])
    eventually(lambda: site.client.do("GET", f"{GPUS}/{GPU}")["status"]["plugin"]["registered"] is False)
    site.apply("second")
    told = site.wait_for("Placed", "False", "NoDevice", "second")["message"]
    assert "the kubelet does not know of the node agent's device plugin now" in told
    stays(lambda: site.pods("gemma")[0]["metadata"]["uid"] == pod["metadata"]["uid"], 1)
    site.plane.report("node1", [plugged()])
    site.wait_for("Available", "True", "Serving", "second")


def test_a_card_is_spelled_as_the_runtime_class_of_the_server_knows_it(site: Site) -> None:
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    metadata = {"name": "old"}
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": "nvidia-legacy"}
    site.client.do("POST", path, body)
    try:
        site.operator()
        site.node(devices=[card(0, 16).model_copy(update={"uuid": "GPU-7"})])
        pod = site.serve(server={"runtimeClassName": "old"})
    finally:
        site.client.delete(f"{path}/old")
    assert pod["spec"]["runtimeClassName"] == "old"
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
    assert "nvidia-legacy" in binding(site)["reason"]
