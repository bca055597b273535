"""Nodes that are drained, operators that are killed or doubled: nothing lost, nothing orphaned, no server restarted."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import host
from e2e import api, installation, kit
from support.cluster import eventually, get, kubectl

pytestmark = pytest.mark.e2e


@pytest.fixture
def uncordoned() -> Iterator[None]:
    """Let both nodes take pods again afterwards."""
    yield
    kubectl("uncordon", *kit.NODES)


def operator_pods() -> list[api.Object]:
    """Give the operator's pods."""
    return api.listed("pods", kit.SYSTEM, kit.OPERATOR)


def leader() -> str:
    """Give the holder of the operator's Lease."""
    (lease,) = api.listed("leases", kit.SYSTEM)
    return str(lease["spec"].get("holderIdentity") or "")


def kill_operators() -> int:
    """End every operator's process at once, as a crash does; gives how many. Only processes of pods of this cluster."""
    uids = {pod["metadata"]["uid"] for pod in operator_pods()}
    killed = 0
    for pid in host.members():
        with contextlib.suppress(OSError):
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if "paddock" in command and any(uid in groups or uid.replace("-", "_") in groups for uid in uids):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def check_whole(namespace: str, names: set[str]) -> None:
    """Every deployment has its pod, every pod its deployment, every reservation its pod, and nothing is twice."""
    there = kit.pods(namespace)
    owners = [pod["metadata"]["labels"]["paddock.dev/model-deployment"] for pod in there]
    assert sorted(owners) == sorted(names), "one pod for each deployment"
    held = kit.reservations(namespace)
    assert set(held) == {pod["metadata"]["name"] for pod in there}
    for pod in there:
        record = json.loads(pod["metadata"]["annotations"]["paddock.dev/placement"])
        assert held[pod["metadata"]["name"]]["gpu"] == record["gpu"]
    kit.nothing_double_booked()


@pytest.mark.parametrize("count", [20, pytest.param(50, marks=pytest.mark.long)])
def test_operator_killed_amid_applies(namespace: str, count: int) -> None:
    before = {f"before-{number}" for number in range(3)}
    during = {f"during-{number}" for number in range(count)}
    kit.put(namespace, *(kit.deployment(name) for name in sorted(before)))
    kit.wait_available(namespace, *before)
    healthy = kit.containers(namespace)
    wanted = sorted(during)
    kit.put(namespace, *(kit.deployment(name) for name in wanted[: count // 2]))
    assert kill_operators() >= 1
    kit.put(namespace, *(kit.deployment(name) for name in wanted[count // 2 :]))
    kit.wait_available(namespace, *before, *during, seconds=60 + 5 * count)
    eventually("no stray reservation", lambda: len(kit.reservations(namespace)) == count + 3, 60)
    check_whole(namespace, before | during)
    after = kit.containers(namespace)
    assert {name: after[name] for name in healthy} == healthy, "a healthy server was restarted"
    assert all(one["restartCount"] == 0 for pod in kit.pods(namespace) for one in pod["status"]["containerStatuses"])
    (operator,) = operator_pods()
    assert operator["status"]["containerStatuses"][0]["restartCount"] >= 1, "it was not killed"


def test_two_operators_and_a_takeover(namespace: str) -> None:
    kit.put(namespace, kit.deployment("before"))
    kit.wait_available(namespace, "before")
    healthy = kit.containers(namespace)
    kubectl("scale", "deployment", "paddock-operator", "-n", kit.SYSTEM, "--replicas=2")
    try:
        eventually("two operators", lambda: sum(map(kit.pod_ready, operator_pods())) == 2, 60)
        first = leader()
        (leading,) = (pod["metadata"]["name"] for pod in operator_pods() if pod["metadata"]["name"] in first)
        names = {f"during-{number}" for number in range(6)}
        kit.put(namespace, *(kit.deployment(name) for name in sorted(names)))
        kubectl("delete", "pod", leading, "-n", kit.SYSTEM, "--wait=false")
        eventually("another operator leads", lambda: leader() not in ("", first), 30)
        kit.put(namespace, kit.deployment("after"))
        kit.wait_available(namespace, "before", "after", *names, seconds=90)
        check_whole(namespace, {"before", "after", *names})
        assert kit.containers(namespace).items() >= healthy.items()
    finally:
        kubectl("scale", "deployment", "paddock-operator", "-n", kit.SYSTEM, "--replicas=1")
        eventually("one operator", lambda: len(operator_pods()) == 1, 60)


def test_drain_moves_what_may_move(namespace: str, uncordoned: None) -> None:  # noqa: ARG001 for its end
    kit.put(
        namespace,
        kit.deployment("moves"),
        kit.deployment("stays", {"node": "node2", "index": 0}),
    )
    found = kit.wait_available(namespace, "moves", "stays")
    assert {kit.device_of(one)["node"] for one in found.values()} == {"node2"}
    kubectl(
        *("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=1"),
        *("--timeout=60s", "--pod-selector=paddock.dev/model-deployment in (moves,stays)"),
    )
    moved = kit.wait_available(namespace, "moves")["moves"]
    assert kit.device_of(moved)["gpu"] == kit.GPU_4080
    told = kit.wait_condition(namespace, "stays", "Placed", "False")
    assert "the node is cordoned" in told["message"]
    assert kit.pods(namespace, "stays") == []
    assert get("node", "node2")["spec"]["unschedulable"] is True
    kubectl("uncordon", "node2")
    back = kit.wait_available(namespace, "stays")["stays"]
    assert kit.device_of(back)["gpu"] == kit.GPU_6000
    assert kit.device_of(kit.mdep(namespace, "moves"))["gpu"] == kit.GPU_4080, "nothing that serves is moved back"
    installation.wait_listed()
