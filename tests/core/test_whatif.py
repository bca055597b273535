"""What would help is true: asked again with the change, there is a device."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import AllowIntegrated, DeviceRef, Policy, ServingSpec
from paddock.api.report import HeaderSummary, TensorGroup
from paddock.api.selector import DeviceSelector
from paddock.core.fleet import Device, Fleet
from paddock.core.moves import Tenant
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.request import Request
from paddock.core.rules import Rule
from paddock.core.smaller import resized, smaller
from paddock.core.whatif import other_policies, what_ifs
from support.builders import GIB, GTX_1060, INTEL, MIB, RTX_4080, claim, device, fleet

LLAMA = HeaderSummary(
    architecture="llama",
    file_bytes=5 * GIB,
    parameters=8 * 10**9,
    block_count=32,
    context_train=131_072,
    embedding_length=4096,
    feed_forward=[14_336],
    head_count=[32],
    head_count_kv=[8],
    key_length=128,
    value_length=128,
    vocabulary=128_256,
    input_tensors=TensorGroup(bytes=300 * MIB, count=1),
    layer_tensors=TensorGroup(bytes=4 * GIB, count=290),
    output_tensors=TensorGroup(bytes=430 * MIB, count=2),
)
"""A dense model of eight billion parameters."""


def told(request: Request, where: Fleet) -> list[tuple[str, str]]:
    found = place(request, where)
    assert isinstance(found, Unplaceable)
    return [(one.change, one.gpu) for one in what_ifs(request, where, found)]


def test_each_wish_that_stands_in_the_way_is_told() -> None:
    where = fleet(GTX_1060, RTX_4080)
    small = DeviceSelector.model_validate({"maxMemory": "8Gi"})
    only = DeviceRef.model_validate({"uuid": "GPU-1060"})
    assert told(Request(need=8 * GIB, selector=small), where) == [("without placement.selector", RTX_4080.gpu)]
    assert told(Request(need=8 * GIB, devices=(only,)), where) == [("without placement.devices", RTX_4080.gpu)]
    assert told(Request(need=GIB, node_selector={"zone": "a"}), where) == [
        ("without placement.nodeSelector", RTX_4080.gpu)
    ]
    assert told(Request(need=8 * GIB, rules=(Rule("team", gpus=small),)), where) == [
        ("without its PlacementPolicies", RTX_4080.gpu)
    ]
    never = Request(need=14 * GIB, allow_integrated=AllowIntegrated.NEVER)
    assert told(never, fleet(GTX_1060, INTEL)) == [("with allowIntegrated Always", INTEL.gpu)]
    assert told(Request(need=14 * GIB), where) == []


def test_deployments_whose_end_would_do_are_told_least_first_and_never_its_own() -> None:
    mine = claim("default/gemma-a-0", 4 * GIB)
    claims = (claim("default/a-0", 3 * GIB), claim("default/b-0", 2 * GIB), claim("default/c-0", GIB), mine)
    where = fleet(device("gpu", free=None, claims=claims))
    request = Request(need=4 * GIB, siblings=frozenset({mine.pod}))
    assert told(request, where) == [("without default/b (2 GiB)", "gpu"), ("without default/a (3 GiB)", "gpu")]


@given(
    st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=4),
    st.integers(1, 14),
    st.booleans(),
)
def test_what_is_told_is_true(used: list[list[int]], need: int, narrow: bool) -> None:
    cards: list[Any] = [
        device(
            f"gpu-{number}",
            free=None,
            pci_id=None,
            total=(8 + 4 * number) * GIB,
            claims=tuple(claim(f"default/m{number}x{n}-0", size * GIB) for n, size in enumerate(sizes)),
        )
        for number, sizes in enumerate(used)
    ]
    where = fleet(*cards)
    selector = DeviceSelector.model_validate({"maxMemory": "8Gi"}) if narrow else None
    request = Request(need=need * GIB, selector=selector)
    found = place(request, where)
    if isinstance(found, Unplaceable):
        for one in what_ifs(request, where, found):
            then = place(one.request, one.fleet)
            assert isinstance(then, Placement)
            assert then.device is not None
            assert then.device.gpu == one.gpu
            assert replace(one.request, selector=selector) == request


def tenant(where: Device, number: int, **fields: Any) -> Tenant:
    """Give the tenant of a claim, who goes anywhere."""
    held = where.claims[number]
    given: dict[str, Any] = {
        "owner": held.pod,
        "device": where.gpu,
        "need": held.bytes,
        "deployment": held.deployment,
        "movable": True,
        "evictable": True,
        "request": Request(need=held.bytes),
        **fields,
    }
    return Tenant(**given)


def test_a_move_and_an_eviction_are_told_with_whom_and_where() -> None:
    large = device("large", total=24 * GIB, free=None, claims=(claim("default/a-0", 4 * GIB),))
    little = device("little", total=8 * GIB, free=None, pci_id="0000:02:00.0")
    where = fleet(large, little)
    request = Request(need=22 * GIB, priority=1)
    found = place(request, where)
    assert isinstance(found, Unplaceable)
    told_ = [(one.change, one.gpu) for one in what_ifs(request, where, found, [tenant(large, 0)], "default/new")]
    assert told_ == [
        ("with default/a (4 GiB) moved to little", "large"),
        ("with default/a (4 GiB, priority 0) evicted", "large"),
        ("without default/a (4 GiB)", "large"),
    ]
    equal = replace(request, priority=0)
    assert [one.change for one in what_ifs(equal, where, found, [tenant(large, 0)])][1:] == [told_[2][0]]


def test_the_policies_that_would_choose_otherwise_are_told() -> None:
    where = fleet(
        device("large", total=24 * GIB, free=None, bandwidth=300 * 10**9),
        device("fast", total=16 * GIB, free=None, bandwidth=900 * 10**9, pci_id="0000:02:00.0"),
        device("small", total=8 * GIB, free=None, bandwidth=200 * 10**9, pci_id="0000:03:00.0"),
    )
    request = Request(need=4 * GIB, policy=Policy.FASTEST)
    found = place(request, where)
    assert isinstance(found, Placement)
    told_ = {one.change: one.gpu for one in other_policies(request, where, found)}
    assert told_["with policy MostMemory"] == "large"
    assert told_["with policy BestFit"] == "small"
    assert "with policy Auto" not in told_
    for one in other_policies(request, where, found):
        then = place(one.request, one.fleet)
        assert isinstance(then, Placement)
        assert then.device is not None
        assert then.device.gpu == one.gpu


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 1)), max_size=3), min_size=1, max_size=4),
    st.integers(4, 14),
)
def test_moves_and_evictions_that_are_told_are_true(used: list[list[tuple[int, int]]], need: int) -> None:
    cards = [
        device(
            f"gpu-{number}",
            free=None,
            pci_id=None,
            total=max((8 + 2 * number) * GIB, sum(size for size, _ in rows) * GIB),
            claims=tuple(claim(f"default/m{number}x{n}-0", size * GIB) for n, (size, _) in enumerate(rows)),
        )
        for number, rows in enumerate(used)
    ]
    where = fleet(*cards)
    tenants = [
        tenant(card, n, priority=rank)
        for card, rows in zip(cards, used, strict=True)
        for n, (_, rank) in enumerate(rows)
    ]
    request = Request(need=need * GIB, priority=1)
    found = place(request, where)
    if isinstance(found, Unplaceable):
        for one in what_ifs(request, where, found, tenants):
            then = place(one.request, one.fleet)
            assert isinstance(then, Placement)
            assert then.device is not None
            assert then.device.gpu == one.gpu
            assert one.request == request
            for card in one.fleet.devices:
                assert card.reserved <= (card.total or 0)


def test_less_context_narrower_caches_and_fewer_slots_are_told_and_are_true() -> None:
    serving = ServingSpec(context_length=32_768, parallel=4)
    request = resized(Request(need=0, needs={"CUDA": 0}), LLAMA, serving)
    large = request.need_on(device())
    where = fleet(device(total=large * 2 // 3, free=None))
    found = list(smaller(request, where, LLAMA, serving))
    assert [one.change.rpartition(" ")[0] for one in found] == ["with contextLength", "with q8_0", "with parallel"]
    for one in found:
        then = place(one.request, one.fleet)
        assert isinstance(then, Placement)
        assert then.need < large
    # The largest that fits: one step more does not.
    tokens = int(found[0].change.rpartition(" ")[2])
    more = serving.model_copy(update={"context_length": tokens + 256})
    assert isinstance(place(resized(request, LLAMA, more), where), Unplaceable)
    slots = int(found[2].change.rpartition(" ")[2])
    more = serving.model_copy(update={"parallel": slots + 1})
    assert isinstance(place(resized(request, LLAMA, more), where), Unplaceable)


def test_nothing_smaller_is_told_where_that_would_not_do() -> None:
    serving = ServingSpec(context_length=8192)
    request = resized(Request(need=0), LLAMA, serving)
    assert list(smaller(request, fleet(device(total=256 * MIB, free=None)), LLAMA, serving)) == []
