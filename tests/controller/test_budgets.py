"""What the owner of the fleet says about GPUs and nodes is held, and the operator writes none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
