"""What the owner of the fleet says about GPUs and nodes is held, and the operator writes none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddock.api.report import GgmlType
from paddock.core.quantity import parse_quantity
from support.client import eventually
from support.harness import GPUS
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from support.site import Site

GIB = 1024**3


def say(site: Site, **spec: Any) -> None:
    site.client.do("PATCH", f"{GPUS}/{GPU}", {"spec": spec})


def test_a_budget_holds_models_back_until_it_is_raised(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16)])
    before = site.settle() and site.gpu()
    say(site, budget="3Gi", reserve="1Gi", labels={"team": "a"})
    site.settle()
    assert site.gpu() == before, "the operator's own words do not change with those of the owner"
    site.serve("a")
    site.apply("b", placement={"selector": {"gpuLabels": {"team": "a"}}})
    told = site.wait_for("Placed", "False", "WaitingForDevice", "b")["message"]
    assert "needs 2 GiB, has 1 GiB left of 3 GiB" in told
    assert site.status("b")["shortage"] == {
        "gpu": GPU,
        "node": "node1",
        "memory": "Device",
        "requiredBytes": 2 * GIB,
        "availableBytes": GIB,
        "holders": [{"deployment": f"{site.namespace}/a", "bytes": 2 * GIB}],
    }
    say(site, budget="Auto")
    site.wait_for("Available", "True", "Serving", "b")
    assert "shortage" not in site.status("b")
    stored = site.client.get(f"{GPUS}/{GPU}")
    assert stored is not None
    assert stored["spec"] == {"budget": "Auto", "reserve": "1Gi", "labels": {"team": "a"}, "quarantine": False}


def test_a_node_s_word_on_host_memory_holds_models_back(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16)])
    site.serve("a")
    (reservation,) = site.gpu()["reservations"]
    assert reservation["hostBytes"] > 0
    path = "/api/v1/nodes/node1"
    site.client.do("PATCH", path, {"metadata": {"annotations": {"paddock.dev/host-budget": "500Mi"}}})
    site.settle()
    site.apply("b")
    told = site.wait_for("Placed", "False", "WaitingForDevice", "b")["message"]
    assert "HostMemory" in told
    assert site.status("b")["shortage"]["memory"] == "Host"
    site.client.do("PATCH", path, {"metadata": {"annotations": {"paddock.dev/host-budget": None}}})
    site.wait_for("Available", "True", "Serving", "b")
    eventually(lambda: len(site.reservations()) == 2)


def test_a_pod_on_an_integrated_gpu_asks_for_what_it_has_of_the_machine_s_memory(site: Site) -> None:
    site.operator()
    board = card(0, 64).model_copy(update={"type": GgmlType.IGPU, "description": "NVIDIA GB10"})
    site.node(devices=[board])
    site.serve("a")
    site.serve("b")
    held = site.gpu()["reservations"]
    assert len(held) == 2
    for pod in site.pods():
        (booked,) = (one for one in held if one["pod"].endswith(f"/{pod['metadata']['name']}"))
        asked = parse_quantity(pod["spec"]["containers"][0]["resources"]["requests"]["memory"])
        assert asked >= booked["bytes"] + booked["hostBytes"]
    # Of the node's 256 GiB less is allowed than both have, so that there is none for a third one.
    path = "/api/v1/nodes/node1"
    site.client.do("PATCH", path, {"metadata": {"annotations": {"paddock.dev/host-budget": "5Gi"}}})
    site.settle()
    site.apply("c")
    told = site.wait_for("Placed", "False", "WaitingForDevice", "c")["message"]
    assert "of host memory, which the device is in" in told
