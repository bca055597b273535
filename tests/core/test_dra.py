"""ResourceSlices as drivers publish them, the claim for one card, and what was allocated."""

from __future__ import annotations

from typing import Any

import pytest

from paddock.core.dra import (
    MOST_NAME,
    SliceDevice,
    allocated,
    claim,
    claim_name,
    compare,
    offered,
    selector,
    slices_by_node,
)

NVIDIA = "gpu.nvidia.com"
CARD = ("GPU-aaaa", "0000:01:00.0")
"""UUID and PCI address."""
OFFER = SliceDevice(NVIDIA, "node1", "gpu-0", "GPU-aaaa", "0000:01:00.0")
OTHER = SliceDevice(NVIDIA, "node1", "gpu-1", "GPU-bbbb", "0000:02:00.0")


def a_slice(node: str | None, *devices: dict[str, Any], driver: str = NVIDIA, generation: int = 1) -> dict[str, Any]:
    pool = {"name": node or "network", "generation": generation, "resourceSliceCount": 1}
    where = {"nodeName": node} if node else {"allNodes": True}
    return {"spec": {"driver": driver, "pool": pool, **where, "devices": list(devices)}}


def entry(name: str, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key.replace("__", "/"): {"string": text} for key, text in attributes.items()}}


def test_slices_are_read_by_node_and_only_the_newest_generation_counts() -> None:
    pci = {"resource.kubernetes.io/pciBusID": "0000:01:00.0"}
    slices = [
        a_slice("node1", entry("gpu-0", uuid="GPU-old"), generation=1),
        a_slice("node1", entry("gpu-0", uuid="GPU-aaaa", **pci), generation=2),
        a_slice("node2", entry("card", pciBusID="0000:41:00.0"), driver="gpu.intel.com"),
        a_slice(None, entry("remote", uuid="GPU-far")),
    ]
    assert slices_by_node(slices) == {
        "node1": (OFFER,),
        "node2": (SliceDevice("gpu.intel.com", "node2", "card", None, "0000:41:00.0", "gpu.intel.com/pciBusID"),),
    }


def test_what_could_break_out_of_an_expression_is_no_identifier() -> None:
    (found,) = slices_by_node([a_slice("node1", entry("gpu-0", uuid='x" || true || "'))])["node1"]
    assert found.uuid is None


@pytest.mark.parametrize(
    ("offers", "found"),
    [
        ((OTHER, OFFER), OFFER),
        ((SliceDevice(NVIDIA, "p", "d", "gpu-AAAA"),), SliceDevice(NVIDIA, "p", "d", "gpu-AAAA")),
        ((SliceDevice("x", "p", "d", None, "0000:01:00.0"),), SliceDevice("x", "p", "d", None, "0000:01:00.0")),
        ((SliceDevice("x", "p", "d", "GPU-bbbb", "0000:01:00.0"),), None),
        ((OFFER, SliceDevice("other", "p", "d", "GPU-aaaa")), None),
        ((OTHER,), None),
        ((), None),
    ],
    ids=["uuid", "any case", "address", "address of another uuid", "two drivers", "another card", "nothing"],
)
def test_a_card_is_found_by_its_identity_alone(offers: tuple[SliceDevice, ...], found: SliceDevice | None) -> None:
    assert offered(*CARD, offers) == found


def test_the_selector_is_guarded() -> None:
    attributes = f'device.attributes["{NVIDIA}"]'
    assert selector(OFFER) == (
        f'device.driver == "{NVIDIA}" && "uuid" in {attributes} && {attributes}["uuid"] == "GPU-aaaa"'
    )
    standard = 'device.attributes["resource.kubernetes.io"]'
    assert selector(SliceDevice("x", "p", "d", None, "0000:01:00.0")) == (
        f'device.driver == "x" && "pciBusID" in {standard} && {standard}["pciBusID"] == "0000:01:00.0"'
    )


def test_a_claim_goes_with_its_pod() -> None:
    pod = {"metadata": {"name": "gemma-1", "namespace": "team", "uid": "u"}}
    made = claim("gemma-1-ab", pod, "gemma", OFFER, "gpus")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    (request,) = made["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpus"
    assert request["exactly"]["count"] == 1


def test_a_claims_name_fits() -> None:
    assert claim_name("a", "salt") == "a-salt"
    assert len(claim_name("a" * 200, "salt")) == MOST_NAME
    assert claim_name("a" * 200, "salt").endswith("-salt")


def result(one: SliceDevice) -> dict[str, str]:
    return {"request": "gpu", "driver": one.driver, "pool": one.pool, "device": one.device}


def test_what_was_allocated_is_compared_with_the_card() -> None:
    offers = (OFFER, OTHER)
    assert allocated({"status": {}}) is None
    given = allocated({"status": {"allocation": {"devices": {"results": [result(OFFER)]}}}})
    assert given == (OFFER.place,)
    assert compare(given, offers, *CARD).same is True
    wrong = compare((OTHER.place,), offers, *CARD)
    assert wrong.same is False
    assert wrong.message == (
        "its claim was given gpu-1 of gpu.nvidia.com on node1 (GPU-bbbb at 0000:02:00.0); "
        "the model belongs on GPU-aaaa at 0000:01:00.0"
    )
    both = compare((OFFER.place, OTHER.place), offers, *CARD)
    assert both.same is False
    assert "gpu-0" in both.message
    assert "gpu-1" in both.message
    assert compare((), offers, *CARD).same is False


def test_a_device_that_no_slice_has_is_neither_right_nor_wrong() -> None:
    told = compare((OFFER.place,), (), *CARD)
    assert told.same is None
    assert "no ResourceSlice" in told.message
