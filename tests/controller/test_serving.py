"""The life of a deployment on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.harness import eventually
from support.pretend_agent import card, uuid_of

if TYPE_CHECKING:
    from conftest import Site

GIB = 1024**3


def test_a_deployment_is_placed_proven_and_served(site: Site) -> None:
    site.operator()
    site.node()
    mark = site.settle()

    site.kubelet.paused = True
    site.apply("gemma")
    (pod,) = eventually(site.pods)
    booked = site.reservations()
    assert list(booked) == [pod["metadata"]["name"]]
    site.settle()
    writes = site.plane.written(mark)
    assert writes["create /pods"] == 1
    assert writes["update paddock.dev/gpus/status"] == 1
    assert writes["patch paddock.dev/modeldeployments/status"] == 1, "one status write for the first step"

    container = pod["spec"]["containers"][0]
    uuid = uuid_of("node1", card(0, 16))
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == f"runtime.nvidia.com/gpu={uuid}"
    assert environment["CUDA_VISIBLE_DEVICES"] == uuid
    assert container["image"].endswith(":server-cuda-b11434")
    assert container["args"][:2] == ["-m", "/models/gemma.gguf"]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["metadata"]["ownerReferences"][0]["controller"] is True
    assert pod["spec"]["readinessGates"] == [{"conditionType": "paddock.dev/verified"}]
    status = site.status()
    (placed,) = status["placements"]
    assert placed["node"] == "node1"
    assert placed["devices"][0]["uuid"] == uuid
    assert placed["devices"][0]["needBytes"] == booked[pod["metadata"]["name"]]
    assert booked[pod["metadata"]["name"]] % (256 * 1024**2) == 0
    assert site.condition("Placed")["status"] == "True"
    assert site.condition("Available")["status"] == "False"
