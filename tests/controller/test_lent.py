"""Cards that the plugin of their vendor gives: asked for by number, learned from the kubelet, then proven."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from paddock.api.report import GivenDevices
from support.client import JSON, eventually, stays
from support.harness import NAMESPACE, STRATEGIC, grant, resource_of
from support.helm import operator_rights, render
from support.pretend_agent import card
from support.pretend_kubelet import Behaviour, honest_log
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.site import Site

VALUES = {"agent": {"podResources": True}}
ACCOUNT = "lent-paddock-operator"
CARDS = [card(number, 16).model_copy(update={"uuid": f"GPU-{number}"}) for number in range(2)]
SECOND_GPU = "node1-0000-02-00-0"


@pytest.fixture
def lent(site: Site) -> Iterator[Site]:
    """Give a site with a node whose plugin gives its two cards, and an operator with the chart's rights for that."""
    grant(site.plane.server, render(VALUES, "lent"))
    site.plane.stop_operators()
    site.another_operator(kubeconfig=site.plane.kubeconfig_for(ACCOUNT))
    site.node("node1", CARDS)
    advertise(site, 2)
    tell(site)
    site.settle()
    yield site
    site.remove_all()
    site.plane.stop_operators()


def advertise(site: Site, count: int) -> None:
    resources = {"nvidia.com/gpu": str(count)}
    status = {"capacity": resources, "allocatable": resources}
    site.client.do("PATCH", "/api/v1/nodes/node1/status", {"status": status}, STRATEGIC)


def run_at(site: Site, name: str, number: int) -> None:
    """Have the servers of a deployment say that they are on this card."""

    def log(pod: JSON) -> str:
        return re.sub("0000:0[12]:00.0", f"0000:0{number + 1}:00.0", honest_log(pod))

    site.kubelet.behave(name, Behaviour(log=log))


def tell(site: Site, **cards: str) -> None:
    """Have the kubelet tell which pod of the test has which card."""
    given = [
        GivenDevices(pod=f"{site.namespace}/{pod}", resource="nvidia.com/gpu", devices=[uuid])
        for pod, uuid in cards.items()
    ]
    site.plane.report("node1", CARDS, given=given)


def the_pod(site: Site, name: str = "gemma") -> JSON:
    return eventually(lambda: site.pods(name), 20, "a pod")[0]


def test_the_card_is_learned_booked_and_proven(lent: Site) -> None:
    lent.apply()
    pod = the_pod(lent)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert not [one for one in container["env"] if one["name"].endswith("VISIBLE_DEVICES")]
    lent.wait_for("Verified", "Unknown", "AwaitingEvidence")
    (placed,) = lent.status()["placements"]
    assert placed["binding"]["exactDevice"] is False
    assert placed["devices"] == [], "nobody knows it yet"
    stays(lambda: lent.condition("Available")["status"] != "True", 0.5)
    (planned,) = [one for one in (GPU, SECOND_GPU) if lent.gpu(one).get("reservations")]
    number, learned = (1, SECOND_GPU) if planned == GPU else (0, GPU)
    uuid = f"GPU-{number}"
    run_at(lent, "gemma", number)
    tell(lent, **{pod["metadata"]["name"]: uuid})
    lent.wait_for("Available", "True", "Serving")
    (placed,) = lent.status()["placements"]
    assert (placed["binding"]["binder"], placed["binding"]["exactDevice"]) == ("VendorPlugin", False)
    assert [one["uuid"] for one in placed["devices"]] == [uuid]
    assert not lent.gpu(planned).get("reservations"), "what was planned with is free again"
    assert [one["pod"].partition("/")[2] for one in lent.gpu(learned)["reservations"]] == [pod["metadata"]["name"]]
    assert the_pod(lent)["metadata"]["uid"] == pod["metadata"]["uid"]


def test_each_server_has_a_card_for_itself(lent: Site) -> None:
    lent.apply("one")
    lent.apply("two")
    first, second = (the_pod(lent, name)["metadata"]["name"] for name in ("one", "two"))
    lent.apply("three")
    assert "one pod at a time" in lent.wait_for("Placed", "False", "WaitingForDevice", "three")["message"]
    planned = lent.status("one")["placements"][0]["reason"]
    crossed = (1, 0) if "0000:01:00.0" in planned else (0, 1)
    for name, number in zip(("one", "two"), crossed, strict=True):
        run_at(lent, name, number)
    tell(lent, **{first: f"GPU-{crossed[0]}", second: f"GPU-{crossed[1]}"})
    for name in ("one", "two"):
        lent.wait_for("Available", "True", name=name)
    assert lent.reservations().keys() == {first, second}
    lent.client.delete(lent.path("one"))
    lent.wait_for("Placed", "True", name="three")


def test_a_server_elsewhere_than_the_kubelet_says_gets_no_traffic(lent: Site) -> None:
    run_at(lent, "gemma", 1)
    lent.apply()
    tell(lent, **{the_pod(lent)["metadata"]["name"]: "GPU-0"})
    told = lent.wait_for("Verified", "False", "WrongDevice")["message"]
    assert "0000:01:00.0" in told
    assert "0000:02:00.0" in told


def test_a_named_card_cannot_be_promised(lent: Site) -> None:
    lent.apply(placement={"devices": [{"uuid": "GPU-0"}]})
    assert "picks the card" in lent.wait_for("Placed", "False", "NoDevice")["message"]
    assert not lent.all_pods()


def test_without_the_kubelets_word_nothing_is_taken(lent: Site) -> None:
    lent.plane.report("node1", CARDS)
    lent.settle()
    lent.apply()
    assert "advertises nvidia.com/gpu" in lent.wait_for("Placed", "False", "NoDevice")["message"]
    tell(lent)
    lent.wait_for("Placed", "True")


def test_rights_are_no_wider_than_calls(lent: Site) -> None:
    run_at(lent, "gemma", 1)
    lent.apply()
    tell(lent, **{the_pod(lent)["metadata"]["name"]: "GPU-1"})
    lent.wait_for("Available", "True", "Serving")
    calls = {
        f"{one['verb']} {resource_of(one)}"
        for one in lent.plane.audit()
        if one["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}" and one.get("objectRef")
    }
    assert operator_rights(VALUES) - operator_rights() <= calls
