"""Memory of GPUs in the capacity of their nodes: written, put right, asked for by pods, and taken off again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.client import eventually, stays
from support.harness import STRATEGIC, grant, resource_of
from support.helm import operator_rights, render
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.site import Site

VALUES = {"nodeCapacity": {"mode": "Enabled"}, "watchNamespaces": ["default"]}
WIDE = {**VALUES, "watchNamespaces": []}
ACCOUNT = "counting-paddock-operator"
FIRST, SECOND = "gpu.paddock.dev/uuid-0-granules", "gpu.paddock.dev/uuid-1-granules"
CARDS = [card(number, 16).model_copy(update={"uuid": f"GPU-{number}"}) for number in range(2)]
STATUS = "/api/v1/nodes/node1/status"


@pytest.fixture
def counting(site: Site) -> Iterator[Site]:
    """Give a site with a node of two cards, and an operator that counts them there."""
    grant(site.plane.server, render(WIDE, "counting"))
    restart(site, "Enabled")
    site.node("node1", CARDS)
    site.settle()
    yield site
    site.remove_all()
    site.plane.stop_operators()


def restart(site: Site, mode: str) -> None:
    site.plane.stop_operators()
    site.another_operator(kubeconfig=site.plane.kubeconfig_for(ACCOUNT), node_capacity=mode)


def listed(site: Site, what: str = "capacity") -> dict[str, str]:
    status = site.client.do("GET", "/api/v1/nodes/node1")["status"]
    return {name: count for name, count in status.get(what, {}).items() if name.endswith("-granules")}


def take_over(site: Site, **changed: str) -> None:
    """Do as a kubelet does: what is in the capacity can be had."""
    status = {"allocatable": {**listed(site), **changed}}
    site.client.do("PATCH", STATUS, {"status": status}, STRATEGIC)


def test_servers_ask_for_memory_that_their_node_counts(counting: Site) -> None:
    eventually(lambda: listed(counting) == {FIRST: "64", SECOND: "64"}, 20)
    counting.apply()
    told = counting.wait_for("Placed", "False", "NoDevice")["message"]
    assert "does not list the memory of the card" in told
    take_over(counting)
    counting.wait_for("Available", "True", "Serving")
    (pod,) = counting.pods()
    (size,) = counting.reservations().values()
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    name = FIRST if counting.gpu(GPU).get("reservations") else SECOND
    assert limits == {name: str(size // (256 * 1024**2))}
    (placed,) = counting.status("gemma")["placements"]
    assert placed["binding"]["binder"] == "RuntimeClass"


def test_what_a_kubelet_or_somebody_else_changes_is_put_right(counting: Site) -> None:
    eventually(lambda: len(listed(counting)) == 2, 20)
    capacity = {FIRST: "0", SECOND: None, "gpu.paddock.dev/uuid-nobody-granules": "7", "example.com/dongle": "3"}
    counting.client.do("PATCH", STATUS, {"status": {"capacity": capacity}}, STRATEGIC)
    eventually(lambda: listed(counting) == {FIRST: "64", SECOND: "64"}, 20)
    assert counting.client.do("GET", "/api/v1/nodes/node1")["status"]["capacity"]["example.com/dongle"] == "3"
    version = counting.client.do("GET", "/api/v1/nodes/node1")["metadata"]["resourceVersion"]
    stays(lambda: counting.client.do("GET", "/api/v1/nodes/node1")["metadata"]["resourceVersion"] == version, 3)


def test_it_is_taken_off_and_nobody_asks_for_it_then(counting: Site) -> None:
    eventually(lambda: len(listed(counting)) == 2, 20)
    take_over(counting)
    restart(counting, "Removed")
    eventually(lambda: not listed(counting), 20)
    counting.apply()
    counting.wait_for("Available", "True", "Serving")
    (pod,) = counting.pods()
    assert not pod["spec"]["containers"][0]["resources"].get("limits", {}).keys() & {FIRST, SECOND}


def test_the_right_is_used_and_no_other_is_needed(counting: Site) -> None:
    eventually(lambda: len(listed(counting)) == 2, 20)
    calls = {
        (f"{one['verb']} {resource_of(one)}", one["responseStatus"]["code"])
        for one in counting.plane.audit()
        if one["user"]["username"].endswith(f":{ACCOUNT}") and one.get("objectRef")
    }
    more = operator_rights(VALUES) - operator_rights({"watchNamespaces": ["default"]})
    assert more == {"patch /nodes/status"}
    assert ("patch /nodes/status", 200) in calls
    assert not [name for name, code in calls if code == 403]
