"""The arithmetic of what a device has left, taints, and GPU objects read as devices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.gpu import DeviceType, GPUSpec, GPUStatus, Memory, Reservation
from paddock.api.modeldeployment import Toleration
from paddock.core.fleet import Device, Holder, Node, Taint, device_of, limit_of
from paddock.core.quantity import UNLIMITED
from support.builders import GIB, MIB, claim, device, fleet

SIZES = st.integers(0, 80).map(lambda steps: steps * 256 * MIB)
RESERVES = st.integers(0, 4).map(lambda steps: steps * 256 * MIB)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    sizes = draw(st.lists(st.tuples(SIZES, st.booleans()), max_size=5))
    claims = [claim(f"default/m{number}-0", size, resident=there) for number, (size, there) in enumerate(sizes)]
    return device(total=draw(st.none() | SIZES), free=draw(st.none() | SIZES)).with_claims(claims)


@given(devices(), RESERVES)
def test_one_more_model_of_the_available_size_never_overbooks(one: Device, reserve: int) -> None:
    available = one.available(reserve)
    assert available >= 0
    if available:
        assert one.reserved + available <= (one.total or 0) - reserve


@given(devices(), RESERVES)
def test_memory_that_strangers_use_is_never_given_away(one: Device, reserve: int) -> None:
    if one.free is not None:
        pending = sum(each.bytes for each in one.claims if not each.resident)
        assert one.available(reserve) <= max(0, one.free - pending - reserve)


@given(devices(), RESERVES, st.integers(0, 5))
def test_a_pod_that_goes_never_makes_less_room(one: Device, reserve: int, count: int) -> None:
    gone = [each.pod for each in one.claims[:count]]
    after = fleet(one, reserve=reserve).without(gone).devices[0]
    assert after.available(reserve) >= one.available(reserve)
    assert after.reserved == one.reserved - sum(each.bytes for each in one.claims[:count])
    assert after.free is None or one.free is None or after.total is None or after.free <= max(after.total, one.free)


def test_a_claim_that_is_resident_is_not_counted_twice() -> None:
    one = device(total=12 * GIB, free=7 * GIB, claims=(claim(size=5 * GIB, resident=True),))
    assert one.available(0) == 7 * GIB


def test_a_claim_on_its_way_is_taken_from_what_is_free() -> None:
    one = device(total=12 * GIB, free=9 * GIB, claims=(claim(size=5 * GIB),))
    assert one.available(0) == 4 * GIB


def test_a_card_held_by_the_pod_that_is_replaced_has_room_for_its_successor() -> None:
    one = device(total=12 * GIB, free=2 * GIB, claims=(claim("default/gemma-a-0", 10 * GIB, resident=True),))
    assert one.available(0) == 2 * GIB
    assert fleet(one).without(["default/gemma-a-0"]).devices[0].available(0) == 12 * GIB


def test_memory_that_a_pod_never_used_does_not_come_back() -> None:
    one = device(total=12 * GIB, free=5 * GIB, claims=(claim("default/gemma-a-0", 4 * GIB),))
    assert fleet(one).without(["default/gemma-a-0"]).devices[0].available(0) == 5 * GIB


def test_a_fleet_without_a_pod_it_never_had_is_the_same() -> None:
    before = fleet(device(claims=(claim(),)))
    assert before.without(["default/unknown-0"]) == before


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({}, False),
    ],
)
def test_taints_are_tolerated_as_in_kubernetes(toleration: dict[str, str], covered: bool) -> None:
    tolerations = [Toleration.model_validate(toleration)]
    assert Taint("gpu", "yes", "NoSchedule").tolerated_by(tolerations) is covered


def status(**fields: object) -> GPUStatus:
    return GPUStatus.model_validate({"node": "node1", "name": "CUDA1", "type": "Discrete", **fields})


def test_a_gpu_object_is_read_with_its_reservations() -> None:
    reservations = [
        {"pod": "default/a-0", "deployment": "default/a", "uid": "u", "bytes": GIB, "since": "2026-01-01T00:00:00Z"},
        {"pod": "default/b-0", "deployment": "default/b", "uid": "u", "bytes": GIB, "since": "2026-01-01T00:00:00Z"},
    ]
    ready = {"type": "Ready", "status": "True", "reason": "Listed", "message": "ok", "lastTransitionTime": "2026-01-01"}
    one = device_of(
        "gpu-a",
        status(
            backends=["CUDA", "Vulkan"],
            memory={"total": "12282Mi", "free": "11Gi"},
            reservations=reservations,
            conditions=[ready],
        ),
        {"default/b-0"},
    )
    assert (one.ready, one.backend, one.total, one.free) == (True, "CUDA", 12282 * MIB, 11 * GIB)
    assert [(each.pod, each.resident) for each in one.claims] == [("default/a-0", False), ("default/b-0", True)]


def test_a_gpu_that_no_agent_has_vouched_for_is_not_ready() -> None:
    one = device_of("gpu-a", status())
    assert not one.ready
    assert one.why_not == "no report yet"
    assert (one.total, one.free) == (None, None)


BUDGETS = st.none() | SIZES | st.just(UNLIMITED)


@given(devices(), BUDGETS, st.none() | RESERVES, RESERVES)
def test_a_budget_is_never_exceeded_and_never_makes_room(
    one: Device, budget: int | None, own: int | None, reserve: int
) -> None:
    limited = replace(one, budget=budget, reserve=own)
    available = limited.available(reserve)
    if budget == UNLIMITED:
        assert available == limited.capacity(reserve) - limited.reserved
        return
    assert limited.capacity(reserve) <= (one.total or 0)
    assert available <= replace(one, reserve=own).available(reserve)
    if budget is not None and available:
        assert limited.reserved + available <= budget


def test_what_the_owner_says_of_a_gpu_goes_before_the_fleets_settings() -> None:
    said = GPUSpec.model_validate({"budget": "8Gi", "reserve": "1Gi", "labels": {"team": "a"}})
    one = device_of("gpu-a", status(memory={"total": "12Gi", "free": "11Gi"}), spec=said)
    assert (one.budget, one.reserve, one.labels) == (8 * GIB, GIB, {"team": "a"})
    assert one.capacity(512 * MIB) == 8 * GIB
    assert replace(one, budget=None).capacity(512 * MIB) == 11 * GIB
    assert replace(one, budget=None).available(512 * MIB) == 10 * GIB
    free = device_of("gpu-a", status(memory={"total": "12Gi"}), spec=GPUSpec(budget="Unlimited"))
    assert free.available(0) == UNLIMITED
    assert device_of("gpu-a", status(memory={"total": "12Gi"})).budget is None


def test_who_has_the_memory_is_told_most_first() -> None:
    claims = (claim("default/a-0"), claim("default/b-0", 3 * GIB), claim("default/a-1", 4 * GIB))
    one = device(total=12 * GIB, free=2 * GIB, claims=tuple(replace(each, resident=True) for each in claims))
    assert one.holders(0) == (Holder("default/a", 5 * GIB), Holder("default/b", 3 * GIB), Holder(None, 2 * GIB))
    assert replace(one, free=None).holders(0)[-1] == Holder("default/b", 3 * GIB)


@pytest.mark.parametrize(
    ("fleet_says", "node_says", "limit"),
    [
        ("Unlimited", None, UNLIMITED),
        ("Auto", None, 32 * GIB),
        ("20Gi", None, 20 * GIB),
        ("20Gi", "Auto", 32 * GIB),
        ("Auto", "4Gi", 4 * GIB),
        ("4Gi", "Unlimited", UNLIMITED),
        ("4Gi", "nonsense", UNLIMITED),
    ],
)
def test_host_memory_is_limited_by_the_node_or_the_fleet(fleet_says: str, node_says: str | None, limit: int) -> None:
    node = Node("node1", memory=32 * GIB, budget=node_says)
    assert replace(fleet(node1=node), host_budget=fleet_says).host_limit(node) == limit


def test_a_node_of_unknown_memory_has_no_automatic_limit() -> None:
    assert limit_of("Auto", None) == UNLIMITED


def test_memory_of_a_server_that_loads_is_not_counted_twice() -> None:
    """Free memory shows what it has so far; only the rest of its reservation is still to come."""
    status = GPUStatus(
        node="node1",
        name="CUDA0",
        type=DeviceType.DISCRETE,
        memory=Memory(total="16384Mi", free="12288Mi"),
        reservations=[Reservation(pod="ns/a", deployment="ns/a", uid="u", bytes=6 << 30, since="2026-01-01T00:00:00Z")],
    )
    assert device_of("gpu", status).available(0) == 6 << 30
    assert device_of("gpu", status, shown={"ns/a": 4 << 30}).available(0) == 10 << 30
    assert device_of("gpu", status, shown={"ns/a": 9 << 30}).pending == 0, "more than reserved leaves nothing to come"
    assert device_of("gpu", status, resident={"ns/a"}, shown={"ns/a": 4 << 30}).available(0) == 10 << 30
