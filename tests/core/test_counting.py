"""Memory of GPUs in the status of their nodes: what is written, what pods ask for, and when nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.api.binding import Binder
from paddock.api.vocabulary import Verdict
from paddock.controller.store import node_of
from paddock.core.binding import Asked, Chosen, Names, NodeFacts, Refused, bind, choose
from paddock.core.counting import counted, difference, wanted
from paddock.core.dra import SliceDevice
from paddock.core.fleet import Counted, Device, Holding, Node
from paddock.core.quantity import UNLIMITED
from support.builders import AMD, GIB, MIB, RTX_4080, plugged

CARD = replace(RTX_4080, uuid="GPU-A1b2", total=16 * GIB + 100 * MIB)
NAME = "gpu.paddock.dev/uuid-a1b2-granules"
PLAIN = NodeFacts("node1", frozenset({"nvidia"}))
SHOWN, UNSEEN = Counted(NAME, shown=True), Counted(NAME, shown=False)
OFFER = SliceDevice("gpu.nvidia.com", "pool", "gpu-0")


def test_each_card_is_one_resource_of_whole_granules() -> None:
    (long,) = wanted([replace(CARD, uuid="GPU-" + "a" * 80)])
    assert len(long) == len("gpu.paddock.dev/") + 63, "what Kubernetes takes"
    by_address = replace(AMD, uuid=None, pci_id="0000:03:00.0", total=8 * GIB)
    assert wanted([CARD, by_address]) == {NAME: 64, "gpu.paddock.dev/pci-0000-03-00-0-granules": 32}


@pytest.mark.parametrize(
    "other",
    [
        plugged(CARD, "Cdi"),
        replace(CARD, offer=OFFER),
        replace(CARD, total=None),
        replace(CARD, uuid=None, pci_id=None),
        replace(CARD, ambiguous=True),
    ],
)
def test_what_is_counted_elsewhere_or_has_no_name_or_size_is_not_counted(other: Device) -> None:
    assert wanted([other]) == {}
    assert counted(other, Node("node1", granules={NAME: 64})) == other


def test_a_kubelet_has_taken_a_resource_over_once_it_can_be_had() -> None:
    assert counted(CARD, Node("node1", granules={NAME: 64})).counted == SHOWN
    assert counted(CARD, Node("node1", granules={NAME: 0})).counted == UNSEEN
    assert counted(CARD, Node("node1", capacity={NAME: 64})).counted == UNSEEN
    assert counted(CARD, None).counted is None


def test_only_what_differs_is_written() -> None:
    assert difference({NAME: 64, f"{NAME}-granules": 8}, {NAME: 64}) == {f"{NAME}-granules": None}
    assert difference({NAME: 63}, {NAME: 64}) == {NAME: "64"}
    assert difference({NAME: 64}, {NAME: 64}) == {}


@pytest.mark.parametrize("device", [replace(CARD, counted=SHOWN), replace(AMD, counted=SHOWN)])
def test_a_pod_asks_for_what_holds_its_need(device: Device) -> None:
    found = choose(device, PLAIN, Asked())
    assert isinstance(found, Chosen)
    assert bind(device, PLAIN, GIB + 1, Names("nvidia"), found).resources == {NAME: "5"}
    unlimited = replace(device, budget=UNLIMITED)
    assert bind(unlimited, PLAIN, 400 * GIB, Names("nvidia"), found).resources == {NAME: "1"}
    free = replace(device, counted=None)
    assert bind(free, PLAIN, GIB + 1, Names("nvidia"), found).resources == {}


def test_servers_on_a_held_card_ask_for_it_and_those_that_have_a_whole_card_do_not() -> None:
    held = replace(CARD, counted=SHOWN, lent="nvidia.com/gpu", holding=Holding("holder"))
    found = choose(held, PLAIN, Asked())
    assert isinstance(found, Chosen)
    assert found.binder is Binder.VENDOR_PLUGIN
    assert bind(held, PLAIN, GIB, Names("nvidia"), found).resources == {NAME: "4"}
    whole = replace(held, holding=None)
    found = choose(whole, PLAIN, Asked())
    assert isinstance(found, Chosen)
    assert bind(whole, PLAIN, GIB, Names("nvidia"), found).resources == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("binder", [None, Binder.RUNTIME_CLASS])
def test_nothing_is_placed_before_the_kubelet_counts(binder: Binder | None) -> None:
    found = choose(replace(CARD, counted=UNSEEN, binder=binder), PLAIN, Asked())
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.BINDER_MISSING
    assert "does not list" in found.reason
    assert isinstance(choose(replace(CARD, counted=SHOWN, binder=binder), PLAIN, Asked()), Chosen)


def test_both_are_read_from_the_node() -> None:
    quantities = {"cpu": "4", NAME: "1k", "nvidia.com/gpu": "2", "gpu.paddock.dev/uuid-a1b2": "3"}
    node = node_of({"metadata": {"name": "node1"}, "status": {"allocatable": quantities, "capacity": {NAME: "64"}}})
    assert node.granules == {NAME: 1000}
    assert node.capacity == {NAME: 64}
    assert node.resources == {"nvidia.com/gpu": 2}
