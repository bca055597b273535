"""The quick road gives the same answer as the plain one, for every input, and after every change of the fleet."""

from collections import Counter
from dataclasses import fields
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paddock.core.fleet import Device, Fleet, Node
from paddock.core.index import Index
from paddock.core.placement import place
from paddock.core.request import Request
from paddock.core.survey import sight_of
from support.fleets import NODES, PODS, a_claim, a_device, a_fleet, a_node, a_request, some
from support.plain import place_plainly

CHANCES = st.randoms(use_true_random=True)
REQUESTS = 20
"""For each fleet."""
CHANGES = 12


@given(CHANCES)
def test_classes_give_the_same_answer_as_a_look_at_every_device(chance: Random) -> None:
    where = a_fleet(chance)
    for _ in range(REQUESTS):
        request = a_request(chance)
        quick, plain = place(request, where), place_plainly(request, where)
        assert quick == plain
        assert quick.judged == plain.judged


def changed(chance: Random, before: Fleet) -> Fleet:
    """Change a fleet in one of the ways there are."""
    gpus = [one.gpu for one in before.devices]
    match chance.choice(["claim", "claim", "without", "replace", "gone", "nodes"]):
        case "claim" if gpus:
            return before.with_claim(chance.choice(gpus), a_claim(chance))
        case "without":
            return before.without(some(chance, PODS, 3))
        case "gone" if gpus:
            return before.with_devices(gone=chance.choices(gpus, k=2))
        case "nodes":
            name = chance.choice(NODES)
            return before.with_nodes({**before.nodes, name: a_node(chance, name)})
        case _:
            return before.with_devices([a_device(chance, chance.randint(0, 30)) for _ in range(chance.randint(1, 2))])


@given(CHANCES)
def test_a_fleet_that_was_changed_answers_like_one_made_anew(chance: Random) -> None:
    where = a_fleet(chance)
    requests = [a_request(chance) for _ in range(3)]
    for _ in range(CHANGES):
        if chance.random() < 0.7:
            place(chance.choice(requests), where)
        before = where
        where = changed(chance, before)
        anew = Fleet(where.nodes, where.devices, where.reserve, where.host_budget)
        assert same(where.index, anew.index)
        for request in requests:
            assert place(request, where) == place_plainly(request, where)
            assert place(request, before) == place_plainly(request, before)


def same(one: Index, other: Index) -> bool:
    """Compare what two indices know; what is nothing may be missing."""
    return facts(one) == facts(other)


def facts(index: Index) -> list[object]:
    books = index.books
    return [
        index.where,
        index.families,
        {pod: Counter(books.pods.get(pod) or ()) for pod in PODS},
        {node: Counter(index.at_node(node)) for node in NODES},
        {namespace: size for namespace, size in books.reserved.items() if size},
        {node: size for node, size in books.host_claims.items() if size},
    ]


OF_A_CLASS = {"backend", "type", "description", "total", "bandwidth", "compute_capability", "ready", "ambiguous"} | {
    "budget",
    "reserve",
    "more",
    "binder",
    "lent",
}
"""What `kind_of` gives as it is."""
OF_EACH = {"gpu", "node", "name", "index", "free", "driver", "claims", "foreign", "reserved", "pending"}
"""What no filter asks for, or what is in what is left."""
SEEN_BY_SOME = {"uuid", "raw_index", "why_not", "labels", "pci_id", "plugin", "offer", "holding", "counted"}
"""What is looked at in part (whether a pod can be given it alone, why it is not ready), or by some selectors."""


def test_every_fact_of_a_device_is_known_to_be_alike_in_a_class_or_not() -> None:
    """A filter that asks for a new fact is asked once for a class: the fact must be in `kind_of` or in a `Sight`."""
    assert {one.name for one in fields(Device)} == OF_A_CLASS | OF_EACH | SEEN_BY_SOME
    seen = {"ready", "schedulable", "taints", "labels", "name", "resources"}
    assert {one.name for one in fields(Node)} == seen | {"architecture", "memory", "budget", "granules", "capacity"}, (
        "see `_Kinds`"
    )


def test_models_that_are_on_all_nodes_share_their_classes() -> None:
    where = Fleet({}, ())
    assert sight_of(Request(need=1, file_nodes=frozenset(NODES)), where) == sight_of(Request(need=1), where)
