"""Claims against a real API server: made with their pods, compared with the card, and no wider rights than calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.client import JSON, eventually, stays
from support.harness import NAMESPACE, grant, resource_of
from support.helm import of_kind, operator_rights, render
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paddock.api.report import ListedDevice
    from support.operator_process import Operator
    from support.site import Site

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
VALUES = {"dra": {"enabled": True}}
ACCOUNT = "dra-paddock-operator"


@pytest.fixture
def dra(site: Site) -> Iterator[Site]:
    """Give a site whose operator uses claims, with the rights that the chart gives for that, and no RuntimeClass."""
    objects = render(VALUES, "dra")
    assert ACCOUNT in {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    grant(site.plane.server, objects)
    start(site)
    yield site
    site.remove_all()
    for one in site.client.items(f"{GROUP}/resourceslices"):
        site.client.delete(f"{GROUP}/resourceslices/{one['metadata']['name']}")
    site.plane.stop_operators()


def start(site: Site) -> Operator:
    site.plane.stop_operators()
    kubeconfig = site.plane.kubeconfig_for(ACCOUNT)
    return site.another_operator(dra="true", quarantine_seconds=1, kubeconfig=kubeconfig)


def offer(site: Site, node: str, cards: Sequence[tuple[str, str]], generation: int = 1) -> None:
    """Publish cards by name and UUID, as their driver would."""
    devices = [{"name": name, "attributes": {"uuid": {"string": uuid}}} for name, uuid in cards]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-{generation}"}}
    site.client.do("POST", f"{GROUP}/resourceslices", body | {"spec": spec})


def claims(site: Site) -> list[JSON]:
    return site.client.items(f"{GROUP}/namespaces/{site.namespace}/resourceclaims")


def allocate(site: Site, claim: JSON, device: str, node: str = "node1") -> None:
    """Do the scheduler's part."""
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device}
    path = f"{GROUP}/namespaces/{site.namespace}/resourceclaims/{claim['metadata']['name']}/status"
    site.client.do("PATCH", path, {"status": {"allocation": {"devices": {"results": [result]}}}})


def the_claim(site: Site, *but: str) -> JSON:
    """Wait for a claim that is none of these."""
    found = eventually(lambda: [one for one in claims(site) if one["metadata"]["name"] not in but], 20, "a claim")
    return found[0]


def own(number: int) -> ListedDevice:
    """Give a card with a UUID that is known beforehand."""
    return card(number, 16).model_copy(update={"uuid": f"GPU-{number}"})


def test_a_server_gets_traffic_once_its_claim_was_given_its_card(dra: Site) -> None:
    found = own(0)
    offer(dra, "node1", [("gpu-7", str(found.uuid))])
    dra.node("node1", [found])
    dra.apply()
    claim = the_claim(dra)
    (pod,) = dra.pods()
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", pod["metadata"]["uid"])
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert "runtimeClassName" not in pod["spec"]
    dra.wait_for("Verified", "Unknown", "AwaitingEvidence")
    stays(lambda: dra.condition("Available")["status"] != "True", 0.5)
    allocate(dra, claim, "gpu-7")
    dra.wait_for("Available", "True", "Serving")
    (placed,) = dra.status()["placements"]
    assert placed["binding"]["binder"] == "Dra"
    mark = dra.settle()
    start(dra)
    dra.settle()
    assert dra.plane.written(mark) == {}, "a restarted operator has nothing to do"
    dra.client.delete(dra.path("gemma"))
    eventually(lambda: not claims(dra), 20, "the claim goes with its pod")


def test_a_claim_that_was_given_another_card_is_made_anew(dra: Site) -> None:
    first, second = own(0), own(1)
    offer(dra, "node1", [("gpu-0", str(first.uuid)), ("gpu-1", str(second.uuid))])
    dra.node("node1", [first, second])
    dra.apply(placement={"devices": [{"uuid": first.uuid}]})
    claim = the_claim(dra)
    allocate(dra, claim, "gpu-1")
    told = dra.wait_for("Verified", "False", "WrongDevice")["message"]
    assert str(first.uuid) in told
    assert str(second.uuid) in told
    another = the_claim(dra, claim["metadata"]["name"])
    allocate(dra, another, "gpu-0")
    dra.wait_for("Available", "True", "Serving")


def test_a_card_with_a_claim_has_one_server(dra: Site) -> None:
    found = own(0)
    offer(dra, "node1", [("gpu-0", str(found.uuid))])
    dra.node("node1", [found])
    dra.apply("first")
    allocate(dra, the_claim(dra), "gpu-0")
    dra.wait_for("Available", "True", name="first")
    dra.apply("second")
    assert "one pod at a time" in dra.wait_for("Placed", "False", "WaitingForDevice", "second")["message"]
    dra.client.delete(dra.path("first"))
    dra.wait_for("Placed", "True", name="second")


def test_what_no_driver_offers_is_given_as_before(dra: Site) -> None:
    dra.node("node1", [card(0, 16)])
    pod = dra.serve()
    assert "resourceClaims" not in pod["spec"]
    assert claims(dra) == []


def test_rights_are_no_wider_than_calls(dra: Site) -> None:
    offer(dra, "node1", [("gpu-0", str(own(0).uuid))])
    dra.node("node1", [own(0)])
    dra.apply()
    allocate(dra, the_claim(dra), "gpu-0")
    dra.wait_for("Available", "True", "Serving")
    calls = {
        f"{one['verb']} {resource_of(one)}"
        for one in dra.plane.audit()
        if one["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        and one.get("objectRef", {}).get("apiGroup") == "resource.k8s.io"
    }
    assert calls == operator_rights(VALUES) - operator_rights()
