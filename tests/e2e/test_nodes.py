"""A node that is lost, a driver that hangs or crashes: told, survived, and over as soon as it is over."""

import pytest

from e2e import api, installation, kit
from support.cluster import (
    GTX_1060,
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


def not_ready(gpu: str, reason: str, message: str) -> None:
    """Wait until a GPU is not Ready for a reason."""

    def holds() -> bool:
        found = kit.gpu_ready(gpu)
        return (found["status"], found["reason"]) == ("False", reason) and message in found["message"]

    try:
        eventually(f"{gpu} is not Ready: {reason}", holds, 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {kit.gpu_ready(gpu)}") from None


def agents() -> dict[str, int]:
    """Give how often each agent was restarted, by node."""
    found = api.listed("pods", kit.SYSTEM, "app.kubernetes.io/component=node-agent")
    return {pod["spec"]["nodeName"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in found}


def test_a_driver_that_hangs_or_crashes(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    """A hang on one node, a crash on the other, at the same time."""
    kit.put(
        namespace, kit.deployment("on-node1", {"uuid": GTX_1060}), kit.deployment("on-node2", {"uuid": RTX_PRO_6000})
    )
    kit.wait_available(namespace, "on-node1", "on-node2")
    healthy, restarts = kit.containers(namespace), agents()
    set_lie("node1", "hang", device=RTX_4080)
    set_lie("node2", "crash", device=RTX_PRO_6000)
    not_ready(kit.GPU_4080, "ListingFailed", "")
    not_ready(kit.GPU_6000, "ListingFailed", "")
    kit.put(namespace, kit.deployment("waits", {"uuid": RTX_PRO_6000}))
    kit.wait_condition(namespace, "waits", "Placed", "False", "NoDevice")
    assert len(kit.reservations(namespace)) == 2
    for name in ("on-node1", "on-node2"):
        assert kit.condition(kit.mdep(namespace, name), "Available")["status"] == "True"
        assert kit.chat(kit.address_of(namespace, name))[0] == 200
    for node in kit.NODES:
        clear_lies(node)
    installation.wait_listed()
    kit.wait_available(namespace, "on-node1", "on-node2", "waits")
    assert kit.containers(namespace).items() >= healthy.items(), "a running server was touched"
    assert agents() == restarts, "an agent was restarted"


def keep_operator_off(node: str) -> None:
    """Have the operator run elsewhere: lost with its node, it would be back only when Kubernetes gives up the node."""
    there = [pod for pod in api.listed("pods", kit.SYSTEM, kit.OPERATOR) if pod["spec"]["nodeName"] == node]
    if not there:
        return
    kubectl("cordon", node)
    try:
        kubectl("delete", "pod", "-n", kit.SYSTEM, *(pod["metadata"]["name"] for pod in there))
        kubectl("-n", kit.SYSTEM, "rollout", "status", "deployment/paddock-operator", "--timeout", "60s")
    finally:
        kubectl("uncordon", node)


def test_a_node_that_is_lost_and_comes_back(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    kit.put(namespace, kit.deployment("lost", {"uuid": RTX_PRO_6000}), kit.deployment("safe", {"uuid": RTX_4080}))
    found = kit.wait_available(namespace, "lost", "safe")
    pod = kit.device_of(found["lost"])["podName"]
    healthy = kit.containers(namespace)[kit.device_of(found["safe"])["podName"]]
    keep_operator_off("node2")
    node_down("node2", with_pods=True)
    not_ready(kit.GPU_6000, "AgentSilent", "no answer for")
    kit.wait_condition(namespace, "lost", "Available", "False", seconds=90)
    assert set(kit.reservations(namespace, kit.GPU_6000)) == {pod}, "its memory is kept for it"
    kit.put(namespace, kit.deployment("other", source=kit.TINY))
    # The largest card of all is on the node that is lost.
    assert kit.device_of(kit.wait_available(namespace, "other")["other"])["node"] == "node1"
    node_up("node2")
    kit.wait_available(namespace, "lost", seconds=90)
    installation.wait_listed()
    assert len(kit.reservations(namespace)) == 3
    kit.nothing_double_booked()
    assert kit.containers(namespace)[kit.device_of(found["safe"])["podName"]] == healthy
