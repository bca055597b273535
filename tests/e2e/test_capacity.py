"""Memory of GPUs in the status of their nodes, on real kubelets: scheduler and kubelet count it without a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.local import LocalCluster
from e2e import api, installation, kit
from support.cluster import RTX_4080, eventually, kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e
OF_4080 = f"gpu.paddock.dev/uuid-{RTX_4080.lower().removeprefix('gpu-')}-granules"
GRANULE = 256 * kit.MIB
TOTAL = 12282 * kit.MIB // GRANULE


def counted(what: str, node: str = "node1") -> dict[str, int]:
    """Give what a node's status counts of its cards: as capacity or as allocatable."""
    found = kit.named("nodes", None, node)["status"][what]
    return {name: int(count) for name, count in found.items() if name.endswith("-granules")}


def switch(mode: str) -> None:
    installation.upgrade(values={"nodeCapacity": {"mode": mode}})
    installation.wait_led()


@pytest.fixture(scope="module", autouse=True)
def _counting(cluster: None) -> Iterator[None]:  # noqa: ARG001 the cluster must be up
    """Have nodes count for these tests alone."""
    switch("Enabled")
    eventually("the kubelet has taken it over", lambda: counted("allocatable").get(OF_4080) == TOTAL, 60)
    yield
    switch("Removed")
    for node in ("node1", "node2"):
        eventually("nothing is left", lambda: not counted("capacity", node) | counted("allocatable", node), 60)  # noqa: B023
    installation.upgrade()
    installation.wait_led()


def stranger(name: str, count: int, *, bound: bool) -> api.Object:
    """Give a pod of somebody else that asks for granules; `bound` goes past the scheduler."""
    pod = kit.client_pod(name, "node1", "import time; time.sleep(600)")
    pod["spec"]["containers"][0]["resources"] = {"limits": {OF_4080: str(count)}}
    if not bound:
        del pod["spec"]["nodeName"]
    return pod


def status(namespace: str, name: str) -> dict[str, Any]:
    return dict(kit.named("pods", namespace, name)["status"])


def test_scheduler_and_kubelet_count_what_servers_take(free_cards: str) -> None:
    namespace = free_cards
    kit.put(namespace, kit.deployment("gemma", {"uuid": RTX_4080}, source=kit.GEMMA))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert one["status"]["placements"][0]["binding"]["binder"] == "RuntimeClass"
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert kit.chat(kit.address_of(namespace, "gemma"))[0] == 200
    (pod,) = kit.pods(namespace, "gemma")
    taken = kit.device_of(one)["needBytes"] // GRANULE
    assert pod["spec"]["containers"][0]["resources"]["limits"][OF_4080] == str(taken)

    left = TOTAL - taken
    kit.put(
        namespace, stranger("too-much", left + 1, bound=False), stranger("past-the-scheduler", left + 1, bound=True)
    )

    def pending() -> bool:
        conditions = status(namespace, "too-much").get("conditions", [])
        return any(f"Insufficient {OF_4080}" in each.get("message", "") for each in conditions)

    eventually("the scheduler finds no room", pending, 30)
    eventually(
        "the kubelet refuses", lambda: status(namespace, "past-the-scheduler").get("reason", "").startswith("OutOf"), 30
    )
    kit.put(namespace, stranger("enough", left, bound=False))
    eventually("what is left can be had", lambda: status(namespace, "enough").get("phase") == "Running", 60)
    kit.nothing_double_booked()


def test_a_kubelet_that_is_started_anew_goes_on_counting(free_cards: str) -> None:
    namespace = free_cards
    kit.put(namespace, kit.deployment("runs", {"uuid": RTX_4080}, serving=kit.THIRD))
    kit.wait_available(namespace, "runs")
    healthy = kit.containers(namespace)
    LocalCluster().processes.restart("node1-kubelet", sig=9)
    LocalCluster().node("node1").wait_healthy()
    eventually("it counts", lambda: counted("allocatable").get(OF_4080) == TOTAL, 60)
    kit.put(namespace, kit.deployment("next", {"uuid": RTX_4080}, serving=kit.THIRD))
    kit.wait_available(namespace, "runs", "next")
    assert kit.containers(namespace).items() >= healthy.items(), "a running server was touched"
    kit.nothing_double_booked()


def test_what_a_node_has_lost_is_back_within_seconds(free_cards: str) -> None:
    namespace = free_cards
    lost = '{"status": {"capacity": {"%s": null}}}'
    kubectl("patch", "node", "node1", "--subresource", "status", "--type", "merge", "-p", lost % OF_4080)
    eventually("it counts again", lambda: counted("allocatable").get(OF_4080) == TOTAL, 60)
    kit.put(namespace, kit.deployment("after", {"uuid": RTX_4080}, serving=kit.THIRD))
    kit.wait_available(namespace, "after")
