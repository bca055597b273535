"""Holder pods: made when a card is wanted, shared by servers, gone with the last of them; nothing is booked twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paddock.api.report import GivenDevices
from support.builders import GIB
from support.client import JSON, eventually, stays
from support.harness import NAMESPACE, STRATEGIC, grant, resource_of
from support.helm import operator_rights, render
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.site import Site

VALUES = {"agent": {"podResources": True}, "holderPods": {"enabled": True}, "watchNamespaces": ["default"]}
WIDE = {**VALUES, "watchNamespaces": []}
ACCOUNT = "holding-paddock-operator"
SETTINGS = {"holder_pods": "true", "holder_idle_seconds": 3}
CARDS = [card(number, 16).model_copy(update={"uuid": f"GPU-{number}"}) for number in range(2)]
SECOND_GPU = "node1-0000-02-00-0"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
def held(site: Site) -> Iterator[Site]:
    """Give a site with a node whose plugin gives its two cards, and an operator that makes holders."""
    grant(site.plane.server, render(WIDE, "holding"))
    restart(site)
    site.node("node1", CARDS)
    advertise(site, 2)
    tell(site)
    site.settle()
    yield site
    site.remove_all()
    for one in holders(site):
        site.client.delete(f"{PODS}/{one['metadata']['name']}", gracePeriodSeconds=0)
    site.plane.stop_operators()


def restart(site: Site) -> None:
    site.plane.stop_operators()
    site.another_operator(kubeconfig=site.plane.kubeconfig_for(ACCOUNT), **SETTINGS)


def advertise(site: Site, count: int) -> None:
    resources = {"nvidia.com/gpu": str(count)}
    status = {"capacity": resources, "allocatable": resources}
    site.client.do("PATCH", "/api/v1/nodes/node1/status", {"status": status}, STRATEGIC)


def tell(site: Site, **cards: str) -> None:
    """Have the kubelet tell which pod (by name) has which card: holders, and `other` in the test's namespace."""
    given = [
        GivenDevices(
            pod=f"{site.namespace if pod == 'other' else NAMESPACE}/{pod}", resource="nvidia.com/gpu", devices=[uuid]
        )
        for pod, uuid in cards.items()
    ]
    site.plane.report("node1", CARDS, given=given)


def holders(site: Site) -> list[JSON]:
    found = site.client.items(f"{PODS}?labelSelector=app.kubernetes.io/component=card-holder")
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def the_holders(site: Site, count: int = 1) -> list[str]:
    """Wait for so many holders; gives their names."""

    def there() -> list[str]:
        names = sorted(one["metadata"]["name"] for one in holders(site))
        assert len(names) == count, names
        return names

    return eventually(there, 20, f"{count} holders")


def test_servers_share_the_card_that_one_holder_was_given(held: Site) -> None:
    held.apply("one")
    held.apply("two")
    (holder,) = the_holders(held)
    told = held.wait_for("Placed", "False", "WaitingForDevice", "one")["message"]
    assert f"holder pod {holder} asks for a card of node1" in told
    assert not held.pods("one"), "nobody knows which card it will be"
    (container,) = holders(held)[0]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    tell(held, **{holder: "GPU-1"})
    for name in ("one", "two"):
        held.wait_for("Available", "True", "Serving", name)
        (pod,) = held.pods(name)
        (server,) = pod["spec"]["containers"]
        assert "nvidia.com/gpu" not in server["resources"].get("limits", {})
        variables = {one["name"]: one["value"] for one in server["env"]}
        assert variables["NVIDIA_VISIBLE_DEVICES"] == "runtime.nvidia.com/gpu=GPU-1"
        (placed,) = held.status(name)["placements"]
        assert placed["binding"]["binder"] == "VendorPlugin"
        assert holder in placed["binding"]["reason"]
        assert placed["binding"].get("exactDevice", True) is True
        assert [one["uuid"] for one in placed["devices"]] == ["GPU-1"]
    assert len(held.gpu(SECOND_GPU)["reservations"]) == 2
    assert not held.gpu(GPU).get("reservations")
    assert the_holders(held) == [holder], "one card will do"


def test_a_holder_goes_with_the_last_server_and_not_before(held: Site) -> None:
    held.apply("one")
    held.apply("two")
    (holder,) = the_holders(held)
    tell(held, **{holder: "GPU-0"})
    for name in ("one", "two"):
        held.wait_for("Available", "True", name=name)
    held.client.delete(held.path("one"))
    stays(lambda: the_holders(held) == [holder], 5)
    held.client.delete(held.path("two"))
    eventually(lambda: not holders(held), 20, "no holder")
    tell(held)
    held.apply("three")
    the_holders(held)


def test_a_named_card_is_got_and_what_came_before_is_given_back(held: Site) -> None:
    held.apply(placement={"devices": [{"uuid": "GPU-1"}]})
    (first,) = the_holders(held)
    tell(held, **{first: "GPU-0"})
    second = next(one for one in the_holders(held, 2) if one != first)
    tell(held, **{first: "GPU-0", second: "GPU-1"})
    held.wait_for("Available", "True", "Serving")
    assert len(held.gpu(SECOND_GPU)["reservations"]) == 1
    eventually(lambda: the_holders(held) == [second], 20, "the other card is given back")


def test_cards_of_others_are_left_to_them(held: Site) -> None:
    tell(held, other="GPU-0")
    held.apply()
    (holder,) = the_holders(held)
    tell(held, other="GPU-0", **{holder: "GPU-1"})
    held.wait_for("Available", "True", "Serving")
    advertise(held, 1)
    held.apply("named", placement={"devices": [{"uuid": "GPU-0"}]})
    told = held.wait_for("Placed", "False", "NoDevice", "named")["message"]
    assert f"the plugin gave it to {held.namespace}/other" in told
    assert the_holders(held) == [holder]


def test_a_card_that_is_no_use_is_not_asked_for_over_and_over(held: Site) -> None:
    """The plugin has one healthy card, and that is not the one that is named."""
    advertise(held, 1)
    held.apply(placement={"devices": [{"uuid": "GPU-1"}]})
    (holder,) = the_holders(held)
    tell(held, **{holder: "GPU-0"})
    assert "no nvidia.com/gpu left" in held.wait_for("Placed", "False", "NoDevice")["message"]
    eventually(lambda: not holders(held), 20, "its card is given back")
    tell(held)
    stays(lambda: not holders(held), 1.5)
    assert held.client.get(held.path("gemma")) is not None


def test_a_restarted_operator_goes_on_with_the_holders_that_are_there(held: Site) -> None:
    held.apply()
    (holder,) = the_holders(held)
    held.plane.stop_operators()
    tell(held, **{holder: "GPU-1"})
    restart(held)
    held.wait_for("Available", "True", "Serving")
    uid = held.pods()[0]["metadata"]["uid"]
    restart(held)
    stays(lambda: the_holders(held) == [holder], 5)
    assert held.pods()[0]["metadata"]["uid"] == uid
    assert held.reservations() == {held.pods()[0]["metadata"]["name"]: held.gpu(SECOND_GPU)["reservations"][0]["bytes"]}


def test_a_lost_holder_is_made_anew_and_its_servers_stay(held: Site) -> None:
    pod = served_by_holder(held)
    (holder,) = the_holders(held)
    held.client.delete(f"{PODS}/{holder}", gracePeriodSeconds=0)
    tell(held)
    (again,) = the_holders(held)
    tell(held, **{again: "GPU-1"})
    held.settle()
    assert held.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    held.apply("two")
    held.wait_for("Available", "True", name="two")
    assert len(held.gpu(SECOND_GPU)["reservations"]) == 2


def test_servers_leave_a_card_that_was_given_to_somebody_else(held: Site) -> None:
    """Their holder was removed, and another pod was quicker than the next one: the card is not used by both."""
    pod = served_by_holder(held)
    (holder,) = the_holders(held)
    held.plane.stop_operators()
    held.client.delete(f"{PODS}/{holder}", gracePeriodSeconds=0)
    tell(held, other="GPU-1")
    restart(held)
    eventually(lambda: pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in held.pods()}, 20, "it leaves")
    (again,) = the_holders(held)
    tell(held, other="GPU-1", **{again: "GPU-0"})
    held.wait_for("Available", "True", "Serving")
    assert not held.gpu(SECOND_GPU).get("reservations")
    assert len(held.gpu(GPU)["reservations"]) == 1


def test_while_the_kubelet_does_not_tell_nothing_is_placed_and_nothing_ends(held: Site) -> None:
    pod = served_by_holder(held)
    held.plane.report("node1", CARDS)
    held.apply("two")
    held.wait_for("Placed", "False", name="two")
    stays(lambda: len(the_holders(held)) == 1 and not held.pods("two"), 5)
    assert held.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    tell(held, **{the_holders(held)[0]: "GPU-1"})
    held.wait_for("Available", "True", name="two")


def test_a_kubelet_that_starts_anew_loses_no_holder(held: Site) -> None:
    """It advertises no cards until the plugin registers again, and at first tells of no pods."""
    pod = served_by_holder(held)
    (holder,) = the_holders(held)
    advertise(held, 0)
    stays(lambda: the_holders(held) == [holder], 6)  # longer than an idle one has
    tell(held)
    held.apply("two")
    assert "does not tell now" in held.wait_for("Placed", "False", name="two")["message"]
    stays(lambda: the_holders(held) == [holder] and not held.pods("two"), 6)
    advertise(held, 2)
    tell(held, **{holder: "GPU-1"})
    held.wait_for("Available", "True", name="two")
    assert held.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert len(held.gpu(SECOND_GPU)["reservations"]) == 2


def test_a_holder_that_the_kubelet_refused_is_removed(held: Site) -> None:
    held.apply()
    (holder,) = the_holders(held)
    eventually(lambda: held.client.get(f"{PODS}/{holder}")["status"]["phase"] == "Running")  # type: ignore[index]
    uid = holders(held)[0]["metadata"]["uid"]
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    held.client.do("PATCH", f"{PODS}/{holder}/status", {"status": status}, STRATEGIC)
    eventually(lambda: all(one["metadata"]["uid"] != uid for one in holders(held)), 20, "it is removed")
    (again,) = the_holders(held)
    tell(held, **{again: "GPU-0"})
    held.wait_for("Available", "True", "Serving")


def test_memory_is_counted_on_a_shared_card(held: Site) -> None:
    """Servers get a second card once the first is full."""
    for number in range(3):
        held.apply(f"one-{number}", serving={"contextLength": 8192})
    (first,) = the_holders(held)
    tell(held, **{first: "GPU-0"})
    for number in range(3):
        held.wait_for("Available", "True", name=f"one-{number}")
    booked = sum(held.reservations().values())
    assert booked <= 16 * GIB
    assert len(held.gpu(GPU)["reservations"]) == 3


def test_rights_are_no_wider_than_calls(held: Site) -> None:
    served_by_holder(held)
    held.client.delete(held.path("gemma"))
    eventually(lambda: not holders(held), 20, "no holder")
    calls = {
        f"{one['verb']} {resource_of(one)}"
        for one in held.plane.audit()
        if one["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        and one.get("objectRef")
        # In its own namespace, what the chart gives beside the rights in those that are served.
        and one["objectRef"].get("namespace") == NAMESPACE
    }
    without = {**VALUES, "holderPods": {"enabled": False}}
    more = operator_rights(VALUES) - operator_rights(without)
    assert more == {"create /pods", "delete /pods"}
    assert more <= calls


def served_by_holder(site: Site) -> JSON:
    """Have a server on the second card, by a holder; gives its pod."""
    site.apply()
    (holder,) = the_holders(site)
    tell(site, **{holder: "GPU-1"})
    site.wait_for("Available", "True", "Serving")
    return site.pods()[0]
