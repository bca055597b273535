"""The agents' device plugin on real kubelets: memory that scheduler and kubelet count, and device nodes in pods."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.local import LocalCluster
from e2e import api, installation, kit
from support.cluster import GTX_1060, RTX_4080, eventually, kubectl, node_exec

pytestmark = pytest.mark.e2e

OF_1060, OF_4080 = (f"gpu.paddock.dev/uuid-{uuid.lower().removeprefix('gpu-')}" for uuid in (GTX_1060, RTX_4080))
OF_INTEL = "gpu.paddock.dev/pci-0000-00-02-0"
WAIT = "import time; time.sleep(600)"
GRANULE = 256 * kit.MIB
POOL = installation.VALUES["agents"][0]
# The pretend cards are not in the kernel's list: the plugin is shown another one, in the folder of its offers.
SYS = "/run/paddock/sys"
VALUES: dict[str, Any] = {
    "agent": {"devicePlugin": {"enabled": True}},
    "agents": [{**POOL, "env": {**POOL["env"], "PADDOCK_SYS_FOLDER": SYS}}],
}


def rolled_out() -> None:
    kubectl("-n", kit.SYSTEM, "rollout", "status", "daemonset", "-l", "app.kubernetes.io/name=paddock", "--timeout=90s")
    installation.wait_listed()


@pytest.fixture(scope="module", autouse=True)
def _plugin(cluster: None) -> Iterator[None]:  # noqa: ARG001 the cluster must be up
    """Have the agents' device plugin for these tests alone."""
    installation.upgrade(values=VALUES)
    rolled_out()
    eventually(
        "both cards of node1 are registered", lambda: all(registered(gpu) for gpu in (kit.GPU_1060, kit.GPU_4080))
    )
    yield
    installation.upgrade()
    rolled_out()
    eventually("nobody speaks of a plugin", lambda: not any("plugin" in one["status"] for one in kit.gpus().values()))


def registered(gpu: str) -> bool:
    plugin = kit.gpus()[gpu]["status"].get("plugin", {})
    return bool(plugin.get("registered"))


def allocatable(resource: str, node: str = "node1") -> int:
    found: str = kit.named("nodes", None, node)["status"]["allocatable"].get(resource, "0")
    return int(found)


def granules(pod: api.Object) -> dict[str, int]:
    """Give what a pod asks for of cards."""
    return {
        name: int(count)
        for one in pod["spec"]["containers"]
        for name, count in one["resources"].get("limits", {}).items()
        if name.startswith("gpu.paddock.dev/")
    }


def foreign(name: str, resource: str, count: int, *, bound: bool, script: str = WAIT) -> api.Object:
    """Give a pod of somebody else that asks for granules; `bound` goes past the scheduler."""
    pod = kit.client_pod(name, "node1", script)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    if not bound:
        del pod["spec"]["nodeName"]
    return pod


def status(namespace: str, name: str) -> dict[str, Any]:
    return dict(kit.named("pods", namespace, name)["status"])


def agent_pod(node: str) -> api.Object:
    found = api.listed("pods", kit.SYSTEM, "app.kubernetes.io/component=node-agent")
    (pod,) = (one for one in found if one["spec"]["nodeName"] == node and "deletionTimestamp" not in one["metadata"])
    return pod


def plugin_of(node: str) -> dict[str, Any]:
    """Give the status of the plugin's container."""
    every = agent_pod(node)["status"]["containerStatuses"]
    return next(dict(one) for one in every if one["name"] == "device-plugin")


def placed_by_plugin(one: api.Object) -> dict[str, Any]:
    (placement,) = one["status"]["placements"]
    binding = dict(placement["binding"])
    assert binding["binder"] == "DevicePlugin", binding
    assert binding["exactDevice"] is True
    return binding


def test_a_server_takes_its_granules_and_nobody_gets_more_than_is_left(free_cards: str) -> None:
    namespace = free_cards
    kit.put(namespace, kit.deployment("gemma", {"uuid": RTX_4080}, source=kit.GEMMA))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert "by its RuntimeClass" in placed_by_plugin(one)["reason"]
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert kit.chat(kit.address_of(namespace, "gemma"))[0] == 200
    (pod,) = kit.pods(namespace, "gemma")
    taken = kit.device_of(one)["needBytes"] // GRANULE
    assert granules(pod) == {OF_4080: taken}
    total = allocatable(OF_4080)
    assert total == 12282 * kit.MIB // GRANULE

    kit.put(
        namespace,
        foreign("too-much", OF_4080, total - taken + 1, bound=False),
        foreign("past-the-scheduler", OF_4080, total - taken + 1, bound=True),
    )

    def pending() -> bool:
        conditions = status(namespace, "too-much").get("conditions", [])
        return any(f"Insufficient {OF_4080}" in one.get("message", "") for one in conditions)

    eventually("the scheduler finds no room", pending, 30)
    refused = eventually(
        "the kubelet refuses",
        lambda: found if (found := status(namespace, "past-the-scheduler")).get("reason") else None,
        30,
    )
    assert refused["phase"] == "Failed"
    assert refused["reason"].startswith(("OutOf", "UnexpectedAdmissionError"))
    kit.put(namespace, foreign("enough", OF_4080, total - taken, bound=False))
    eventually("what is left can be had", lambda: status(namespace, "enough").get("phase") == "Running", 60)
    kit.nothing_double_booked()


def test_a_killed_kubelet_and_a_killed_plugin_change_nothing_for_who_runs(free_cards: str) -> None:
    namespace = free_cards
    kit.put(namespace, kit.deployment("runs", {"uuid": RTX_4080}, serving=kit.THIRD))
    one = kit.wait_available(namespace, "runs")["runs"]
    placed_by_plugin(one)
    healthy, total = kit.containers(namespace), allocatable(OF_4080)
    node = LocalCluster().node("node1")

    before = plugin_of("node1")
    container = before["containerID"].partition("//")[2]
    kit.run(*node.ctr("tasks", "kill", "-s", "SIGKILL", container))
    eventually("the plugin is started again", lambda: plugin_of("node1")["restartCount"] > before["restartCount"], 60)
    eventually("all granules are back", lambda: allocatable(OF_4080) == total, 60)
    eventually("the operator knows", lambda: registered(kit.GPU_4080), 60)

    LocalCluster().processes.restart("node1-kubelet", sig=9)
    node.wait_healthy()
    eventually("all granules are back", lambda: allocatable(OF_4080) == total and registered(kit.GPU_4080), 90)

    kit.put(namespace, kit.deployment("next", {"uuid": RTX_4080}, serving=kit.THIRD))
    found = kit.wait_available(namespace, "runs", "next")
    for each in found.values():
        placed_by_plugin(each)
        assert kit.chat(kit.address_of(namespace, each["metadata"]["name"]))[0] == 200
    assert kit.containers(namespace).items() >= healthy.items(), "a running server was touched"
    held = sum(granules(pod)[OF_4080] for pod in kit.pods(namespace))
    assert held * GRANULE == sum(each["bytes"] for each in kit.reservations(namespace, kit.GPU_4080).values())
    assert held <= total
    kit.nothing_double_booked()


def given_as(gpu: str) -> str:
    return str(kit.gpus()[gpu]["status"].get("plugin", {}).get("hands"))


@pytest.fixture
def cdi_spec() -> Iterator[None]:
    """Have node1 know the RTX 4080 by a CDI name that brings what the runtime class would bring."""
    folder = LocalCluster().node("node1").node.folder
    mounts = [
        {"hostPath": str(folder / name), "containerPath": f"/run/pretend-{name}", "options": ["bind", mode]}
        for name, mode in (("toolkit", "ro"), ("accounts", "rw"))
    ]
    edits = {"env": [f"NVIDIA_VISIBLE_DEVICES={RTX_4080}"], "mounts": mounts}
    device = {"name": RTX_4080, "containerEdits": edits}
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]}
    # Where this node's containerd looks, and where others and the plugin do.
    files = [folder / "cdi" / "paddock-e2e.json", Path("/var/run/cdi/paddock-e2e.json")]
    for file in files:
        file.write_text(json.dumps(spec))
    yield
    for file in files:
        file.unlink()


def test_a_card_with_a_cdi_name_needs_no_runtime_class(free_cards: str, cdi_spec: None) -> None:  # noqa: ARG001 for its end
    namespace = free_cards
    eventually("the plugin has found the name", lambda: given_as(kit.GPU_4080) == "Cdi", 60)
    assert given_as(kit.GPU_1060) == "Environment"
    kit.put(namespace, kit.deployment("gemma", {"uuid": RTX_4080}, source=kit.GEMMA))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert "by its name in CDI" in placed_by_plugin(one)["reason"]
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert kit.chat(kit.address_of(namespace, "gemma"))[0] == 200
    (pod,) = kit.pods(namespace, "gemma")
    assert "runtimeClassName" not in pod["spec"]
    assert {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}[
        "NVIDIA_VISIBLE_DEVICES"
    ] == "void"


@pytest.fixture
def device_nodes() -> Iterator[int]:
    """Show the plugin device nodes of the integrated graphics; gives the group that may open them."""
    folder = f"/var/lib/kubelet/pods/{agent_pod('node1')['metadata']['uid']}/volumes/kubernetes.io~empty-dir/offers"
    card = f"{folder}/sys/bus/pci/devices/0000:00:02.0/drm"
    group = 31999
    # Numbers of a device that every container may open: what is asked here is whether the node gets there.
    script = (
        f"mkdir -p {card}/card0 {card}/renderD128 /dev/dri; for each in card0 renderD128; do "
        f"mknod -m 660 /dev/dri/$each c 1 5; chgrp {group} /dev/dri/$each; done"
    )
    node_exec("node1", "sh", "-ec", script)
    yield group
    node_exec("node1", "sh", "-ec", f"rm -rf {folder}/sys /dev/dri/card0 /dev/dri/renderD128")


def test_a_device_without_a_runtime_class_comes_as_device_nodes_with_their_group(
    namespace: str, device_nodes: int
) -> None:
    eventually("the integrated graphics are registered", lambda: registered(kit.GPU_INTEL), 60)
    kit.put(namespace, kit.deployment("intel", {"node": "node1", "name": "Vulkan0"}))
    one = kit.wait_available(namespace, "intel")["intel"]
    assert "by its device nodes" in placed_by_plugin(one)["reason"]
    assert kit.chat(kit.address_of(namespace, "intel"))[0] == 200
    (pod,) = kit.pods(namespace, "intel")
    assert list(granules(pod)) == [OF_INTEL]
    assert pod["spec"]["securityContext"]["supplementalGroups"] == [device_nodes]
    look = "import os; os.open('/dev/dri/renderD128', os.O_RDWR); print(sorted(os.listdir('/dev/dri')))"
    stranger = foreign("stranger", OF_INTEL, 1, bound=True, script=look)
    stranger["spec"]["securityContext"]["supplementalGroups"] = [device_nodes]
    outsider = foreign("outsider", OF_INTEL, 1, bound=True, script=look)
    kit.put(namespace, stranger, outsider)
    assert kit.finished(namespace, "stranger") == ("Succeeded", "['card0', 'renderD128']\n")
    assert kit.finished(namespace, "outsider")[0] == "Failed", "without the group the node cannot be opened"
    server = kubectl("exec", "-n", namespace, pod["metadata"]["name"], "-c", "server", "--", "ls", "/dev/dri")
    assert server.split() == ["card0", "renderD128"]
