"""Binders: which way a node offers to give a pod one device, and what each puts into the pod."""

from dataclasses import replace
from typing import Any

import pytest

from paddock.api.binding import Binder
from paddock.api.modeldeployment import DeviceRef
from paddock.api.vocabulary import Label, Verdict
from paddock.controller.store import node_of
from paddock.core.binding import SHARING, Asked, Chosen, Names, NodeFacts, Refused, bind, choose, facts_of, lender
from paddock.core.dra import SliceDevice
from paddock.core.filters import judge_all
from paddock.core.fleet import DEPLOYED, Claim, Node
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import UNLIMITED
from paddock.core.request import Request
from support.builders import AMD, GIB, INTEL, MIB, RTX_4080, RTX_6000, bound, fleet, plugged

PLAIN = NodeFacts("node1", frozenset({"nvidia"}))
SHARED = {"nvidia.com/gpu": 2, "example.com/dongle": 1}


def test_a_node_with_the_runtime_class_alone_gives_nvidias_cards_by_it() -> None:
    assert choose(RTX_4080, PLAIN, Asked()) == Chosen(
        Binder.RUNTIME_CLASS, "RuntimeClass nvidia gives the card by its UUID"
    )


def test_other_vendors_devices_are_given_by_environment_alone() -> None:
    found = [choose(one, PLAIN, Asked()) for one in (AMD, INTEL)]
    assert [one.binder for one in found if isinstance(one, Chosen)] == [Binder.NONE, Binder.NONE]


@pytest.mark.parametrize("asked", [Asked(None), Asked("other")])
def test_without_its_runtime_class_a_card_cannot_be_given(asked: Asked) -> None:
    found = choose(RTX_4080, PLAIN, asked)
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.RUNTIME_CLASS_MISSING
    named = "RuntimeClass other does not exist" if asked.runtime_class else "no RuntimeClass is set"
    assert found.reason == f"{named}, and a pod gets a CUDA device by one"
    request = Request(need=1, runtime_classes={"CUDA": False}, runtime_class=asked.runtime_class)
    answer = place(request, fleet(RTX_4080))
    assert isinstance(answer, Unplaceable)
    assert named in answer.message


@pytest.mark.parametrize(
    ("on", "resource"),
    [
        (RTX_4080, "nvidia.com/gpu"),
        (RTX_4080, "nvidia.com/gpu.shared"),
        (RTX_4080, "nvidia.com/mig-1g.10gb"),
        (AMD, "amd.com/gpu"),
        (INTEL, "gpu.intel.com/xe"),
    ],
)
def test_a_node_whose_vendors_plugin_gives_cards_away_is_refused_unless_dedicated(on: Any, resource: str) -> None:
    facts = replace(PLAIN, resources={resource: 1})
    found = choose(on, facts, Asked())
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.VENDOR_PLUGIN_PRESENT
    assert resource in found.reason
    assert isinstance(choose(on, replace(facts, dedicated=True), Asked()), Chosen)


@pytest.mark.parametrize(("on", "resource"), [(RTX_4080, "nvidia.com/gpu"), (AMD, "amd.com/gpu")])
def test_a_resource_of_which_there_are_none_now_is_still_its_plugins(on: Any, resource: str) -> None:
    """A kubelet that was started anew advertises 0 until the plugin is back."""
    facts = replace(PLAIN, resources={resource: 0})
    for asks in (on, plugged(on, "Cdi"), replace(on, binder=None)):
        found = choose(asks, facts, Asked())
        assert isinstance(found, Refused)
        assert found.verdict is Verdict.VENDOR_PLUGIN_PRESENT
        assert f"lists {resource}, 0 now" in found.reason
    assert isinstance(choose(on, replace(facts, dedicated=True), Asked()), Chosen)
    assert isinstance(choose(replace(on, binder=Binder.NONE), facts, Asked()), Chosen)
    assert isinstance(choose(on, replace(facts, resources={}), Asked()), Chosen)


def test_a_label_says_whether_nvidias_plugin_is_to_run() -> None:
    listed = replace(PLAIN, resources={"nvidia.com/gpu": 0, "amd.com/gpu": 0})
    off = replace(listed, deployed=False)
    assert isinstance(choose(RTX_4080, off, Asked()), Chosen)
    assert isinstance(choose(AMD, off, Asked()), Refused), "the label is of NVIDIA's"
    assert isinstance(choose(RTX_4080, replace(off, resources=SHARED), Asked()), Refused), "it runs all the same"
    soon = choose(RTX_4080, replace(PLAIN, deployed=True), Asked())
    assert isinstance(soon, Refused)
    assert "has to run NVIDIA's device plugin" in soon.reason
    assert isinstance(choose(RTX_4080, replace(PLAIN, deployed=True, dedicated=True), Asked()), Chosen)
    for said, means in (("true", True), ("false", False), ("", None), ("pause", None)):
        node = Node("node1", labels={DEPLOYED: said})
        assert facts_of("node1", node, frozenset()).deployed is means


def test_what_a_node_shares_tells_apart_what_decides() -> None:
    looks = [
        Node("node1", resources={}),
        Node("node1", resources={"nvidia.com/gpu": 0}),
        Node("node1", resources={"nvidia.com/gpu": 2}),
        Node("node1", labels={DEPLOYED: "true"}),
        Node("node1", labels={Label.DEDICATED: "true"}),
    ]
    assert len({one.shares for one in looks}) == len(looks)
    assert looks[2].shares == Node("node1", resources={"nvidia.com/gpu": 1}).shares


def test_the_plugin_of_another_vendor_is_no_matter() -> None:
    assert isinstance(choose(INTEL, replace(PLAIN, resources=SHARED), Asked()), Chosen)
    assert isinstance(choose(RTX_4080, replace(PLAIN, resources={"amd.com/gpu": 8}), Asked()), Chosen)


@pytest.mark.parametrize(
    ("handler", "spelling"),
    [
        ("", "runtime.nvidia.com/gpu=GPU-4080"),
        ("nvidia", "runtime.nvidia.com/gpu=GPU-4080"),
        ("nvidia-cdi", "runtime.nvidia.com/gpu=GPU-4080"),
        ("nvidia-legacy", "GPU-4080"),
    ],
)
def test_a_card_is_spelled_as_the_handler_of_its_runtime_class_knows_it(handler: str, spelling: str) -> None:
    chosen = Chosen(Binder.RUNTIME_CLASS, "because")
    given = bind(RTX_4080, PLAIN, GIB, Names("nvidia", handler=handler), chosen)
    assert given.environment["NVIDIA_VISIBLE_DEVICES"] == spelling
    assert ("nvidia-legacy" in given.reason) == (handler == "nvidia-legacy")
    other = bind(AMD, PLAIN, GIB, Names("nvidia", handler=handler), Chosen(Binder.NONE, "because"))
    assert other.reason == "because"


def test_what_the_owner_says_of_a_gpu_goes_first() -> None:
    shared = replace(PLAIN, resources=SHARED)
    explicit = replace(RTX_4080, binder=Binder.RUNTIME_CLASS)
    assert choose(explicit, shared, Asked()) == Chosen(Binder.RUNTIME_CLASS, "the GPU's spec.binder says so")
    missing = choose(replace(INTEL, binder=Binder.RUNTIME_CLASS), PLAIN, Asked())
    assert isinstance(missing, Refused)
    assert missing.verdict is Verdict.BINDER_MISSING
    bare = choose(explicit, NodeFacts("node1"), Asked())
    assert isinstance(bare, Refused)
    assert bare.verdict is Verdict.RUNTIME_CLASS_MISSING


@pytest.mark.parametrize(
    ("on", "how"),
    [
        (plugged(RTX_4080, "Cdi"), "by its name in CDI"),
        (plugged(RTX_4080, "Environment"), "by its RuntimeClass"),
        (plugged(AMD, "Devices"), "by its device nodes"),
        (plugged(INTEL, "Devices"), "by its device nodes"),
    ],
)
def test_the_agents_plugin_goes_before_the_runtime_class_and_nothing(on: Any, how: str) -> None:
    found = choose(on, PLAIN, Asked())
    assert found == Chosen(Binder.DEVICE_PLUGIN, f"the node agent's device plugin gives it {how}")
    shared = replace(PLAIN, resources={"nvidia.com/gpu": 1, "amd.com/gpu": 1, "gpu.intel.com/xe": 1})
    refused = choose(on, shared, Asked())
    assert isinstance(refused, Refused)
    assert refused.verdict is Verdict.VENDOR_PLUGIN_PRESENT
    assert choose(on, replace(shared, dedicated=True), Asked()) == found


def test_a_plugin_that_the_kubelet_does_not_know_gives_nothing_and_is_not_gone_around() -> None:
    found = choose(plugged(RTX_4080, "Cdi", registered=False), PLAIN, Asked())
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.BINDER_MISSING
    explicit = replace(plugged(RTX_4080, "Cdi", registered=False), binder=Binder.RUNTIME_CLASS)
    assert isinstance(choose(explicit, PLAIN, Asked()), Chosen)


def test_a_plugin_that_gives_but_a_variable_needs_the_runtime_class() -> None:
    found = choose(plugged(RTX_4080, "Environment"), NodeFacts("node1"), Asked())
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.RUNTIME_CLASS_MISSING
    assert isinstance(choose(plugged(RTX_4080, "Cdi"), NodeFacts("node1"), Asked()), Chosen)
    vulkan = plugged(replace(RTX_4080, backend="Vulkan"), "Environment")
    assert choose(vulkan, PLAIN, Asked()) == choose(replace(vulkan, plugin=None), PLAIN, Asked())


@pytest.mark.parametrize(
    ("need", "budget", "count"),
    [(1, None, "1"), (256 * MIB, None, "1"), (256 * MIB + 1, None, "2"), (GIB, None, "4"), (40 * GIB, UNLIMITED, "1")],
)
def test_a_pod_asks_for_as_many_granules_as_hold_its_need(need: int, budget: int | None, count: str) -> None:
    on = replace(plugged(RTX_4080, "Cdi"), budget=budget)
    given = bind(on, PLAIN, need, Names(), Chosen(Binder.DEVICE_PLUGIN, ""))
    assert given.resources == {f"gpu.paddock.dev/{RTX_4080.gpu}": count}


def test_what_was_chosen_and_why_is_part_of_what_is_given() -> None:
    given = bound(plugged(AMD, "Devices"))
    assert (given.binder, given.reason, given.exact_device) == (Binder.DEVICE_PLUGIN, "because", True)


@pytest.mark.parametrize("field", [{"registered": False}, {"hands": "Environment"}])
def test_placement_sees_which_cards_the_plugin_gives_out(field: dict[str, Any]) -> None:
    good = replace(plugged(RTX_4080, "Cdi"), gpu="node1-b")
    other = plugged(RTX_4080, **{"hands": "Cdi", "registered": True, **field})
    request = Request(need=GIB, runtime_classes={"CUDA": False})
    placed = place(request, fleet(other, good))
    assert isinstance(placed, Placement)
    assert placed.device == good


def test_facts_are_read_from_the_node() -> None:
    body = {
        "metadata": {"name": "node1", "labels": {Label.DEDICATED: "true"}},
        "status": {
            "allocatable": {
                "cpu": "4",
                "memory": "8Gi",
                "hugepages-2Mi": "0",
                "nvidia.com/gpu": "2",
                "gpu.paddock.dev/nv-1": "48",
                "attachable.kubernetes.io/x": "1",
            }
        },
    }
    facts = facts_of("node1", node_of(body), frozenset({"nvidia"}))
    assert facts == NodeFacts("node1", frozenset({"nvidia"}), {"nvidia.com/gpu": 2}, dedicated=True)


def test_placement_passes_over_a_card_that_two_could_give_away() -> None:
    shared = Node("node1", resources=SHARED)
    world = fleet(RTX_4080, RTX_6000, node1=shared)
    request = Request(need=GIB)
    assert [one.verdict for one in judge_all(request, world)] == [Verdict.VENDOR_PLUGIN_PRESENT, Verdict.FITS]
    placed = place(request, world)
    assert isinstance(placed, Placement)
    assert placed.device == RTX_6000
    alone = place(request, fleet(RTX_4080, node1=shared))
    assert isinstance(alone, Unplaceable)
    assert "nvidia.com/gpu" in alone.message
    dedicated = replace(shared, labels={Label.DEDICATED: "true"})
    assert isinstance(place(request, fleet(RTX_4080, node1=dedicated)), Placement)


def test_a_change_of_what_nodes_advertise_changes_the_decision() -> None:
    both = replace(RTX_6000, gpu="node2-other", description=RTX_4080.description, total=RTX_4080.total)
    world = fleet(RTX_4080, both)
    request = Request(need=GIB)
    assert isinstance(place(request, world), Placement)
    changed = world.with_nodes({"node1": Node("node1", resources=SHARED), "node2": Node("node2")})
    placed = place(request, changed)
    assert isinstance(placed, Placement)
    assert placed.device == both


def test_a_card_that_a_driver_offers_is_given_by_a_claim_and_to_one_pod_at_a_time() -> None:
    offered = replace(RTX_4080, offer=SliceDevice("gpu.nvidia.com", "node1", "gpu-0", RTX_4080.uuid))
    found = choose(offered, PLAIN, Asked())
    assert found == Chosen(Binder.DRA, "driver gpu.nvidia.com offers the card in a ResourceSlice")
    given = bind(offered, PLAIN, GIB, Names("nvidia", claim="c"), found)
    assert (given.runtime_class, given.resource_claims) == (None, {"gpu": "c"})
    assert given.environment["CUDA_VISIBLE_DEVICES"] == RTX_4080.uuid
    shared = choose(offered, replace(PLAIN, resources=SHARED), Asked())
    assert isinstance(shared, Refused)
    assert offered.exclusive
    taken = offered.with_claims([Claim("team/a", "team/a", GIB)])
    assert taken.available(0) == 0
    assert not taken.overbooked(0)
    assert taken.with_claims([*taken.claims, Claim("team/b", "team/b", GIB)]).overbooked(0)
    assert [one.deployment for one in taken.holders(0)] == ["team/a"], "nobody else has the rest"
    (told,) = judge_all(Request(need=GIB), fleet(taken))
    assert told.detail == "needs 1 GiB, and is given to one pod at a time (1 GiB for team/a)"
    by_class = replace(taken, binder=Binder.RUNTIME_CLASS)
    assert not by_class.exclusive
    assert by_class.available(0) > 0


def test_a_claim_names_no_position_of_the_host() -> None:
    offered = replace(AMD, offer=SliceDevice("gpu.amd.com", "node1", "gpu-3", None, AMD.pci_id))
    found = choose(offered, PLAIN, Asked())
    assert isinstance(found, Chosen)
    assert bind(offered, PLAIN, GIB, Names(claim="c"), found).environment == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_beside_a_plugin_of_its_vendor_any_card_is_asked_for() -> None:
    lent, facts = replace(RTX_4080, lent="nvidia.com/gpu"), replace(PLAIN, resources=SHARED)
    found = choose(lent, facts, Asked())
    assert isinstance(found, Chosen)
    assert found.binder is Binder.VENDOR_PLUGIN
    given = bind(lent, facts, GIB, Names("nvidia"), found)
    assert (given.resources, given.runtime_class) == ({"nvidia.com/gpu": "1"}, "nvidia")
    assert given.exact_device is False
    assert "NVIDIA_VISIBLE_DEVICES" not in given.environment, "it would overrule the plugin's"
    both = replace(lent, offer=SliceDevice("gpu.nvidia.com", "node1", "gpu-0", RTX_4080.uuid))
    assert isinstance(choose(both, facts, Asked()), Refused), "a plugin and a driver would give it away twice"
    (told,) = judge_all(Request(need=GIB, devices=(DeviceRef(uuid=RTX_4080.uuid),)), fleet(lent))
    assert told.verdict is Verdict.VENDOR_PLUGIN_PRESENT
    assert "picks the card" in told.detail


@pytest.mark.parametrize(
    ("on", "node", "resource"),
    [
        (RTX_4080, Node("node1", resources={"nvidia.com/gpu": 2}), "nvidia.com/gpu"),
        (AMD, Node("node1", resources={"amd.com/gpu": 2}), "amd.com/gpu"),
        (RTX_4080, Node("node1", resources={"nvidia.com/gpu": 0}), None),
        (RTX_4080, Node("node1", resources={"nvidia.com/mig-1g.10gb": 7}), None),
        (RTX_4080, Node("node1", resources={"amd.com/gpu": 2}), None),
        (INTEL, Node("node1", resources={"gpu.intel.com/i915": 1}), None),
        (RTX_4080, Node("node1", labels={Label.DEDICATED: "true"}, resources={"nvidia.com/gpu": 2}), None),
        (RTX_4080, Node("node1", labels={SHARING: "time-slicing"}, resources={"nvidia.com/gpu": 8}), None),
        (RTX_4080, None, None),
    ],
)
def test_whole_cards_alone_are_borrowed(on: Any, node: Node | None, resource: str | None) -> None:
    assert lender(on, node) == resource


def test_a_card_that_a_pod_was_given_is_lent_while_a_kubelet_starts_anew() -> None:
    none_now = Node("node1", resources={"nvidia.com/gpu": 0})
    assert lender(RTX_4080, none_now) is None
    assert lender(RTX_4080, none_now, given=True) == "nvidia.com/gpu"
    assert lender(RTX_4080, replace(none_now, labels={Label.DEDICATED: "true"}), given=True) is None
