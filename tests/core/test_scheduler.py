from hypothesis import given
from hypothesis import strategies as st

from paddock.core.offload import Places, Reference, parse
from paddock.core.scheduler import (
    DEVICE,
    HOST,
    IN_PLACE,
    INPUT,
    PLAIN,
    UNKNOWN,
    VIEW,
    Graph,
    Operation,
    flash_stays,
    peaks,
)

KIB = 1024


def node(kind: str, *sources: int, view: int = -1, alike: tuple[bool, ...] | None = None) -> Operation:
    return Operation(kind, False, view, sources, alike or (False,) * len(sources))


def chain(places: list[int]) -> Graph:
    """Products with weights in these places, one after the other, of an input of 1 KiB; each result is 2 KiB."""
    graph = Graph()
    last = graph.add(node(INPUT), KIB)
    for place in places:
        weight = graph.outside(place, UNKNOWN, weight=True)
        last = graph.add(node(PLAIN, weight, last), 2 * KIB)
    return graph


def test_all_on_the_device_needs_the_input_on_the_host_and_its_copy() -> None:
    assert peaks(chain([DEVICE])) == (3 * KIB, KIB)


def test_all_on_the_host_needs_nothing_on_the_device() -> None:
    assert peaks(chain([HOST, HOST])) == (0, 5 * KIB)  # where the input was is too small for the second result


def test_a_result_that_the_other_side_needs_is_copied() -> None:
    device, host = peaks(chain([HOST, DEVICE]))
    assert device == 4 * KIB  # the copy and the result
    assert host == 3 * KIB  # the input and what is copied


def test_memory_is_taken_over_only_by_the_last_user_of_the_same_layout() -> None:
    graph = chain([DEVICE])
    last = graph.nodes[-1]
    graph.add(node(IN_PLACE, last, alike=(True,)), 2 * KIB)
    assert peaks(graph) == (3 * KIB, KIB)
    other = chain([DEVICE])
    last = other.nodes[-1]
    other.add(node(IN_PLACE, last, alike=(False,)), 2 * KIB)
    assert peaks(other) == (5 * KIB, KIB)


def test_a_view_takes_no_memory_and_keeps_what_it_looks_at() -> None:
    graph = chain([DEVICE])
    seen = graph.nodes[-1]
    view = graph.add(node(VIEW, seen, view=seen), UNKNOWN)
    graph.add(node(PLAIN, view), 2 * KIB)
    assert peaks(graph) == (5 * KIB, KIB)


def test_neighbours_of_what_the_device_computes_are_computed_there() -> None:
    graph = chain([DEVICE])
    graph.add(node(PLAIN, graph.nodes[-1]), KIB)
    assert peaks(graph)[HOST] == KIB


def test_flash_attention_is_given_up_where_it_is_not_computed_with_its_layer() -> None:
    graph = chain([HOST])
    attention = graph.add(node("f", graph.nodes[-1]), KIB)
    graph.fused.append((attention, HOST))
    assert flash_stays(graph)
    graph.add(node(PLAIN, graph.outside(DEVICE, UNKNOWN, weight=True), attention), KIB)
    assert not flash_stays(graph)


@given(st.lists(st.sampled_from([DEVICE, HOST]), min_size=1, max_size=8))
def test_both_sides_together_hold_at_least_the_largest_step(places: list[int]) -> None:
    device, host = peaks(chain(places))
    assert device + host >= 3 * KIB
    assert host >= KIB


def test_a_template_says_where_its_tensors_come_from() -> None:
    body = parse("I#pos;26,T <v>k/k @r*!/n0=,lpos,w;0,hk,H,T | n2 s1")
    leaf, early, rope = body.words
    assert (leaf.kind, leaf.name, leaf.size) == ("I", "pos", ("26", "T"))
    assert (early.early, early.view, early.size) == (True, Reference("k", 0, ""), ())
    assert (rope.gap, rope.held, rope.output) == (True, True, True)
    assert rope.alike == (True, False, False)
    assert rope.sources == (Reference("n", 0, "0"), Reference("l", 0, "pos"), Reference("w", 0, ""))
    assert [one.letter for one in body.leaving] == ["n", "s"]


def test_a_model_is_mixed_when_anything_is_elsewhere() -> None:
    assert not Places((DEVICE, DEVICE), (DEVICE, DEVICE), DEVICE).mixed
    assert Places((DEVICE, DEVICE), (HOST, DEVICE), DEVICE).mixed
    assert Places((HOST, DEVICE), (HOST, DEVICE), DEVICE).mixed
