"""The main job: one YAML, the right GPU, an answered chat, and a command line that tells why."""

import json
from pathlib import Path

import pytest

from e2e import api, kit
from support.cluster import PCI_IDS, RTX_PRO_6000, eventually, kubectl

pytestmark = pytest.mark.e2e
CARD = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
ASK = """
import json, sys, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}).encode()
request = urllib.request.Request("http://ADDRESS:8080/v1/chat/completions", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=30))["usage"]["completion_tokens"])
"""


def test_gemma_answers_from_the_device_that_auto_chose(namespace: str) -> None:
    kit.put(namespace, kit.deployment("gemma", source=kit.GEMMA, serving={"contextLength": 4096}))
    one = kit.wait_available(namespace, "gemma")["gemma"]
    address = kit.address_of(namespace, "gemma")
    kit.put(namespace, kit.client_pod("client", "node1", ASK.replace("ADDRESS", address)))

    device = kit.device_of(one)
    assert (device["uuid"], device["node"], device["gpu"]) == (RTX_PRO_6000, "node2", kit.GPU_6000)
    assert kit.condition(one, "Verified")["reason"] == "ProcessOnDevice"
    assert f"{CARD} ({PCI_IDS[RTX_PRO_6000]}) holds" in kit.condition(one, "Verified")["message"]
    check_log(kit.log_of(namespace, device["podName"]))
    check_kubectl(namespace, device)
    check_command_line(namespace, device)

    phase, answer = kit.finished(namespace, "client")
    assert (phase, int(answer) > 0) == ("Succeeded", True), answer
    check_restart(namespace, device["podName"])


def check_log(log: str) -> None:
    """Compare the server's own words with the placement."""
    (opened,) = (line for line in log.splitlines() if ": using device " in line)
    assert f"CUDA0 ({CARD}) ({PCI_IDS[RTX_PRO_6000]})" in opened
    for kind in ("model", "KV", "compute"):
        assert f"CUDA0 {kind} buffer size" in log, kind
    assert "CUDA1" not in log


def check_kubectl(namespace: str, device: api.Object) -> None:
    """`kubectl get mdep,gpus` says where it is."""
    lines = kubectl("get", "mdep,gpus", "-n", namespace).splitlines()
    (mine,) = (line.split() for line in lines if line.startswith("modeldeployment.paddock.dev/gemma"))
    assert mine[1:8] == ["1", "1", "CUDA0", "node2", "True", "True", "True"]
    (gpu,) = (line for line in lines if line.startswith(f"gpu.paddock.dev/{kit.GPU_6000}"))
    assert f"{namespace}/gemma" in gpu
    assert kit.reservations(namespace)[device["podName"]]["bytes"] == device["needBytes"]


def check_command_line(namespace: str, device: api.Object) -> None:
    """Each command does its work against the real API server, also as a plug-in of kubectl."""
    why = kit.run("paddock", "explain", "gemma", "-n", namespace).stdout
    assert "fastest of 3 devices that fit (policy Auto)" in why
    assert "GTX 1060" in why
    assert device["uuid"] in kit.run("kubectl", "paddock", "devices", "-o", "wide").stdout
    assert "gemma" in kit.run("kubectl", "paddock", "get", "-n", namespace).stdout
    assert "using device CUDA0" in kit.run("paddock", "logs", "gemma", "-n", namespace).stdout
    answer = kit.run(
        "kubectl", "paddock", "chat", "gemma", "-n", namespace, "--json", "--max-tokens", "8", "Hello"
    ).stdout
    assert json.loads(answer)["usage"]["completion_tokens"] > 0
    assert json.loads(answer)["choices"][0]["message"]["content"].strip()
    assert Path("crds").is_dir() or "ModelDeployment" in kit.run("paddock", "crds").stdout


def check_restart(namespace: str, old: str) -> None:
    """`paddock restart --wait` ends when another server is Ready in the old one's place."""
    kit.run("paddock", "restart", "gemma", "-n", namespace, "--wait", "--timeout", "60")
    (new,) = kit.mdep(namespace, "gemma")["status"]["placements"]
    assert new["podName"] != old
    eventually("the old pod is gone", lambda: [p["metadata"]["name"] for p in kit.pods(namespace)] == [new["podName"]])
