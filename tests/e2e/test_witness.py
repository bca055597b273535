"""The driver's word, end to end: pynvml, the host's process numbers, cgroups, and what the operator makes of it."""

import os
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from e2e import api, kit
from support.cluster import (
    GTX_1060,
    PCI_IDS,
    RTX_4080,
    accounts_folder,
    clear_lies,
    eventually,
    kubectl,
    set_lie,
)
from support.foreign import foreign_process

pytestmark = pytest.mark.e2e
NODE1 = {"kubernetes.io/hostname": "node1"}


def foreign(gpu: str) -> str:
    """Give what a GPU object says of foreign use."""
    return str(kit.named("gpus", None, gpu)["status"]["memory"].get("foreign"))


def ready_reason(gpu: str) -> tuple[str, str]:
    found = kit.gpu_ready(gpu)
    return found["status"], found["reason"]


def pod_condition(pod: api.Object, kind: str) -> datetime:
    (found,) = (one for one in pod["status"]["conditions"] if one["type"] == kind)
    return datetime.fromisoformat(found["lastTransitionTime"])


def test_the_driver_shows_the_server_on_its_card_and_nowhere_else(namespace: str) -> None:
    kit.put(namespace, kit.deployment("gemma", {"uuid": RTX_4080}, source=kit.GEMMA))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert "the driver shows" in kit.condition(one, "Verified")["message"]
    (pod,) = kit.pods(namespace, "gemma")
    late = (pod_condition(pod, "paddock.dev/verified") - pod_condition(pod, "ContainersReady")).total_seconds()
    assert late <= 2, f"verified {late} s after the container was ready"

    def bytes_told() -> int:
        proof = kit.mdep(namespace, "gemma")["status"]["placements"][0]["proof"]
        assert proof["evidence"] == "Driver"
        return int(proof["observedBytes"])

    eventually("the number is told exactly", lambda: (448 + 235) * kit.MIB < bytes_told() < (448 + 400) * kit.MIB)
    assert foreign(kit.GPU_4080) == "0Mi"


def test_a_server_whose_log_is_right_and_whose_memory_is_elsewhere_moves(free_cards: str, truth: None) -> None:  # noqa: ARG001 for its end
    namespace = free_cards
    set_lie("node1", "stray", device=RTX_4080)
    kit.put(namespace, kit.deployment("gemma", source=kit.GEMMA, placement={"nodeSelector": NODE1}))
    told = kit.wait_condition(namespace, "gemma", "Verified", "False", "WrongDevice")["message"]
    assert "the driver shows its process with" in told
    assert f"NVIDIA GeForce GTX 1060 6GB ({PCI_IDS[GTX_1060]}); the model belongs on" in told
    assert f"({PCI_IDS[RTX_4080]})" in told
    assert "though its log says" in told
    one = kit.wait_available(namespace, "gemma")["gemma"]
    assert kit.device_of(one)["gpu"] == kit.GPU_1060
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert set(kit.reservations(namespace, kit.GPU_4080)) == set()
    kit.nothing_double_booked()


def test_what_a_stranger_has_of_a_card_is_told_and_not_given_away(free_cards: str) -> None:
    namespace = free_cards
    with foreign_process(accounts_folder("node1"), PCI_IDS[RTX_4080], 8 << 30) as process:
        eventually("foreign use is told", lambda: foreign(kit.GPU_4080) == "8192Mi", 10)
        (who,) = kit.named("gpus", None, kit.GPU_4080)["status"]["foreignUse"]
        assert who == {"command": Path(f"/proc/{process.pid}/comm").read_text().strip(), "memory": "8192Mi"}
        assert "8192Mi" in kubectl("get", "gpu", kit.GPU_4080)
        kit.put(namespace, kit.deployment("large", {"uuid": RTX_4080}, serving=kit.LARGE))
        waits = kit.wait_condition(namespace, "large", "Placed", "False", "WaitingForDevice")
        assert "used by others than Paddock" in waits["message"]
        assert kit.pods(namespace, "large") == []
    kit.wait_available(namespace, "large", seconds=20)
    eventually("it is over", lambda: foreign(kit.GPU_4080) == "0Mi", 10)


def test_a_card_that_falls_off_the_bus_and_returns(namespace: str, truth: None) -> None:  # noqa: ARG001 for its end
    kit.put(namespace, kit.deployment("stays", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "stays")
    before = kit.containers(namespace)
    set_lie("node1", "lost", device=RTX_4080)
    eventually("it is told", lambda: ready_reason(kit.GPU_4080) == ("False", "DeviceLost"), 10)
    assert ready_reason(kit.GPU_1060) == ("True", "Listed"), "its neighbour is not to blame"
    kit.put(namespace, kit.deployment("waits", {"uuid": RTX_4080}))
    kit.wait_condition(namespace, "waits", "Placed", "False", "NoDevice")
    assert kit.condition(kit.mdep(namespace, "stays"), "Available")["status"] == "True"
    clear_lies("node1")
    eventually("it is back", lambda: ready_reason(kit.GPU_4080) == ("True", "Listed"), 15)
    kit.wait_available(namespace, "stays", "waits")
    assert kit.containers(namespace).items() >= before.items(), "a running server was touched"
    kit.nothing_double_booked()


def test_an_agent_that_is_killed_costs_nobody_anything(namespace: str) -> None:
    kit.put(namespace, kit.deployment("gemma", {"uuid": RTX_4080}, source=kit.GEMMA))
    kit.wait_available(namespace, "gemma")
    before = kit.containers(namespace)
    (agent,) = (
        pod
        for pod in api.listed("pods", kit.SYSTEM, "app.kubernetes.io/component=node-agent")
        if pod["spec"]["nodeName"] == "node1"
    )
    restarts = agent["status"]["containerStatuses"][0]["restartCount"]
    os.kill(agent_process(agent["metadata"]["uid"]), signal.SIGKILL)

    def back() -> bool:
        now = kit.named("pods", kit.SYSTEM, agent["metadata"]["name"])["status"]["containerStatuses"][0]
        return bool(now["restartCount"] > restarts and now["ready"])

    eventually("the kubelet starts it again", back, 20)
    kit.put(namespace, kit.deployment("next", {"uuid": RTX_4080}))
    one = kit.wait_available(namespace, "gemma", "next")["next"]
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice", "the new agent sees processes, too"
    assert kit.containers(namespace).items() >= before.items()
    kit.nothing_double_booked()


def agent_process(pod: str) -> int:
    """Give the process of a pod that is the agent itself, not one of its children."""
    found = subprocess.run(["pgrep", "-f", "paddock-agent"], capture_output=True, text=True, check=False).stdout.split()
    return next(int(pid) for pid in found if pod in Path(f"/proc/{pid}/cgroup").read_text())
