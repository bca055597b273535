"""Room by moving and evicting: what is proposed does, harms nobody who is not to be harmed, and None means none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import DeviceRef, Policy
from paddock.api.selector import DeviceSelector
from paddock.core.fleet import Claim, Device, Fleet
from paddock.core.moves import Limits, Rearrangement, Tenant, rearrange
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from paddock.core.rules import Rule
from support.builders import GIB, device, fleet

BOTH = Limits(evictions=8)
NOTHING = Limits(moves=0)


def tenant(pod: str, gpu: str, gib: int, **fields: Any) -> Tenant:
    """Give one that may be moved and evicted, and goes anywhere."""
    given: dict[str, Any] = {
        "owner": f"default/{pod}",
        "deployment": f"default/{pod.split('-', maxsplit=1)[0]}",
        "device": gpu,
        "need": gib * GIB,
        "movable": True,
        "evictable": True,
        "request": Request(need=gib * GIB),
        **fields,
    }
    return Tenant(**given)


def with_tenants(cards: dict[str, int], *tenants: Tenant) -> Fleet:
    """Give cards of so many GiB with these tenants on them."""
    return fleet(
        *(
            device(
                gpu,
                total=gib * GIB,
                free=None,
                pci_id=None,
                claims=tuple(Claim(one.owner, one.deployment, one.need) for one in tenants if one.device == gpu),
            )
            for gpu, gib in cards.items()
        )
    )


def applied(found: Rearrangement, request: Request, where: Fleet, waiting: str = "default/new") -> Fleet:
    """Do what was proposed."""
    gone = [one.owner for one in found.evictions] + [one.tenant.owner for one in found.moves]
    where = where.without(gone)
    for one in found.moves:
        assert one.placement.device is not None
        moved = Claim(one.tenant.owner, one.tenant.deployment, one.tenant.need)
        where = where.with_claim(one.placement.device.gpu, moved)
    assert found.placement.device is not None
    return where.with_claim(found.placement.device.gpu, Claim("default/new-0", waiting, request.need))


def told(found: Rearrangement | None) -> tuple[list[tuple[str, str]], list[str], str]:
    """Give the moves, the victims and the device."""
    assert found is not None
    assert found.placement.device is not None
    moves = [(one.tenant.owner, one.placement.device.gpu if one.placement.device else "") for one in found.moves]
    return moves, [one.owner for one in found.evictions], found.placement.device.gpu


def test_a_small_model_makes_room_for_a_large_one() -> None:
    small = tenant("small-0", "large", 4)
    where = with_tenants({"large": 24, "little": 8}, small)
    found = rearrange(Request(need=22 * GIB), where, [small], waiting="default/new")
    assert told(found) == ([("default/small-0", "little")], [], "large")
    assert found is not None
    assert found.sentence == "moves default/small (4 GiB) from large to little: then default/new (22 GiB) fits on large"
    assert (found.cost_before.waiting, found.cost_before.waiting_bytes) == (1, 22 * GIB)
    assert (found.cost_after.waiting, found.cost_after.restarts, found.cost_after.restarted_bytes) == (0, 1, 4 * GIB)
    assert (found.cost_before.busy, found.cost_after.busy) == (0, 1)


def test_nothing_is_disturbed_for_one_that_fits_or_never_could() -> None:
    small = tenant("small-0", "large", 4)
    where = with_tenants({"large": 24, "little": 8}, small)
    assert rearrange(Request(need=8 * GIB, priority=9), where, [small], BOTH) is None
    assert rearrange(Request(need=25 * GIB, priority=9), where, [small], BOTH) is None


def test_two_are_moved_where_one_does_not_do_and_three_never() -> None:
    three = [tenant(f"m{number}-0", "large", 4) for number in range(3)]
    cards = {"large": 16, "a": 4, "b": 4, "c": 4}
    where = with_tenants(cards, *three)
    found = rearrange(Request(need=12 * GIB), where, three)
    assert told(found) == ([("default/m0-0", "a"), ("default/m1-0", "b")], [], "large")
    assert rearrange(Request(need=16 * GIB), where, three) is None
    assert rearrange(Request(need=12 * GIB), where, three, Limits(moves=1)) is None


def test_more_bytes_than_half_as_much_again_as_the_need_are_not_moved() -> None:
    big = tenant("big-0", "large", 20)
    where = with_tenants({"large": 24, "other": 20}, big, filler := tenant("filler-0", "other", 0))
    assert rearrange(Request(need=21 * GIB), where, [big, filler]) is not None
    narrow = Request(need=8 * GIB, selector=DeviceSelector.model_validate({"minMemory": "24Gi"}))
    assert rearrange(narrow, where, [big]) is None
    assert rearrange(narrow, where, [big], Limits(moved_percent=250)) is not None


def test_a_moved_model_keeps_to_its_named_devices() -> None:
    only = DeviceRef.model_validate({"uuid": "GPU-large"})
    small = tenant("small-0", "large", 4, request=Request(need=4 * GIB, devices=(only,)))
    where = with_tenants({"large": 24, "little": 8}, small)
    assert rearrange(Request(need=22 * GIB), where, [small]) is None


def test_a_moved_model_goes_where_its_policy_says() -> None:
    cards = {"large": 24, "middle": 12, "little": 8}
    for policy, gpu in ((Policy.MOST_MEMORY, "middle"), (Policy.BEST_FIT, "little")):
        small = tenant("small-0", "large", 4, request=Request(need=4 * GIB, policy=policy))
        found = rearrange(Request(need=22 * GIB), with_tenants(cards, small), [small])
        assert told(found)[0] == [("default/small-0", gpu)]


def with_speeds(where: Fleet, **speeds: int) -> Fleet:
    """Give bandwidths to devices, in gigabytes per second."""
    return replace(where, devices=tuple(replace(one, bandwidth=speeds[one.gpu] * 10**9) for one in where.devices))


def test_who_keeps_the_speed_that_it_asks_for_is_moved_before_who_does_not() -> None:
    wish = Request(need=4 * GIB, min_tokens_per_second=100, token_bytes=4 * GIB)
    quick, other = tenant("quick-0", "large", 4, request=wish), tenant("other-0", "large", 5)
    where = with_speeds(with_tenants({"large": 24, "little": 8}, quick, other), large=1800, little=400)
    assert told(rearrange(Request(need=18 * GIB), where, [quick, other]))[0] == [("default/other-0", "little")]
    found = rearrange(Request(need=18 * GIB), where, [quick])
    assert found is not None
    assert told(found)[0] == [("default/quick-0", "little")]
    assert found.cost_after.slower == 1
    assert "to little, where it is slower than it asks for: then" in found.sentence
    quicker = rearrange(Request(need=18 * GIB), with_speeds(where, large=1800, little=900), [quick])
    assert quicker is not None
    assert (quicker.cost_after.slower, "slower" in quicker.sentence) == (0, False)


def test_nobody_gets_slower_for_a_smaller_one_or_for_one_of_lower_priority() -> None:
    wish = Request(need=4 * GIB, min_tokens_per_second=100, token_bytes=4 * GIB)
    quick = tenant("quick-0", "large", 4, request=wish)
    fixed = tenant("fixed-0", "large", 18, movable=False)
    where = with_speeds(with_tenants({"large": 24, "little": 5}, quick, fixed), large=1800, little=400)
    only = (DeviceRef(uuid="GPU-large"),)
    assert rearrange(Request(need=3 * GIB, devices=only), where, [quick, fixed]) is None
    assert rearrange(Request(need=4 * GIB, devices=only), where, [quick, fixed]) is not None
    dear = replace(quick, priority=1)
    assert rearrange(Request(need=4 * GIB, devices=only), where, [dear, fixed]) is None


def test_what_may_not_be_moved_stays() -> None:
    for fields in ({"movable": False}, {"request": None}, {"owner": "default/new-1"}):
        small = tenant("small-0", "large", 4, **fields)
        where = with_tenants({"large": 24, "little": 8}, small)
        assert rearrange(Request(need=22 * GIB, siblings=frozenset({"default/new-1"})), where, [small]) is None


def test_idle_ones_are_moved_before_busy_ones_and_small_ones_before_large_ones() -> None:
    busy, idle = tenant("busy-0", "large", 4), tenant("idle-0", "large", 6, idle=True)
    where = with_tenants({"large": 24, "little": 8}, busy, idle)
    assert told(rearrange(Request(need=18 * GIB), where, [busy, idle]))[0] == [("default/idle-0", "little")]
    awake = replace(idle, idle=False)
    assert told(rearrange(Request(need=18 * GIB), where, [busy, awake]))[0] == [("default/busy-0", "little")]


def test_of_equals_the_one_is_moved_that_frees_the_device_of_the_policy() -> None:
    pair = [tenant("a-0", "large", 6), tenant("b-0", "huge", 6)]
    where = with_tenants({"large": 24, "huge": 28, "little": 8}, *pair)
    for policy, gpu in ((Policy.MOST_MEMORY, "huge"), (Policy.BEST_FIT, "large")):
        assert told(rearrange(Request(need=23 * GIB, policy=policy), where, pair))[2] == gpu


def test_moving_comes_before_evicting() -> None:
    small = tenant("small-0", "large", 4)
    where = with_tenants({"large": 24, "little": 8}, small)
    assert told(rearrange(Request(need=22 * GIB, priority=9), where, [small], BOTH))[1] == []
    found = rearrange(Request(need=22 * GIB, priority=9), where, [small], Limits(moves=0, evictions=1))
    assert told(found) == ([], ["default/small-0"], "large")


def test_an_eviction_says_whom_and_what_it_costs() -> None:
    low = tenant("low-0", "gpu", 8, priority=-5, idle=True)
    found = rearrange(Request(need=10 * GIB, priority=3), with_tenants({"gpu": 12}, low), [low], BOTH, "default/new")
    assert found is not None
    assert found.sentence == (
        "evicts default/low (8 GiB, priority -5, idle) from gpu: then default/new (10 GiB of priority 3) fits on gpu"
    )
    assert (found.cost_before.priority, found.cost_before.waiting_bytes) == (3, 10 * GIB)
    assert (found.cost_after.priority, found.cost_after.waiting_bytes, found.cost_after.busy) == (-5, 8 * GIB, 0)


def test_only_lower_priority_is_evicted_and_only_where_it_is_allowed() -> None:
    for fields, limits in (({"priority": 3}, BOTH), ({"evictable": False}, BOTH), ({}, Limits()), ({}, NOTHING)):
        one = tenant("one-0", "gpu", 8, **fields)
        assert rearrange(Request(need=10 * GIB, priority=3), with_tenants({"gpu": 12}, one), [one], limits) is None


def test_nothing_is_evicted_if_that_does_not_do_on_one_device() -> None:
    lows = [tenant("a-0", "one", 4), tenant("b-0", "two", 4), tenant("c-0", "one", 6, priority=5)]
    where = with_tenants({"one": 12, "two": 8}, *lows)
    assert rearrange(Request(need=10 * GIB, priority=5), where, lows, BOTH) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": -1}, {"priority": 0, "idle": True}),
        ({"idle": True, "loss": 99}, {"idle": False, "loss": 1}),
        ({"loss": 1}, {"loss": 2}),
        ({"since": "2026-02-01T00:00:00Z"}, {"since": "2026-01-01T00:00:00Z"}),
    ],
)
def test_victims_are_of_lowest_priority_then_idle_then_of_least_loss_then_young(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    for names in (("a-0", "z-0"), ("z-0", "a-0")):
        pair = [tenant(names[0], "gpu", 6, **first), tenant(names[1], "gpu", 6, **second)]
        found = rearrange(Request(need=6 * GIB, priority=5), with_tenants({"gpu": 12}, *pair), pair, BOTH)
        assert told(found)[1] == [f"default/{names[0]}"]


def test_one_victim_is_taken_rather_than_two_that_lose_as_much() -> None:
    three = [tenant("a-0", "one", 3), tenant("b-0", "one", 3), tenant("c-0", "two", 6)]
    where = with_tenants({"one": 6, "two": 6}, *three)
    assert told(rearrange(Request(need=6 * GIB, priority=1), where, three, BOTH))[1] == ["default/c-0"]


def test_a_deployment_is_left_with_what_it_must_keep() -> None:
    pair = [tenant("a-0", "gpu", 4), tenant("a-1", "gpu", 4)]
    where = with_tenants({"gpu": 8, "x": 4, "y": 4}, *pair)
    for limits in (Limits(), Limits(moves=0, evictions=8)):
        request = Request(need=8 * GIB, priority=1)
        assert rearrange(request, where, pair, limits) is not None
        assert rearrange(request, where, pair, replace(limits, spare={"default/a": 2})) is not None
        assert rearrange(request, where, pair, replace(limits, spare={"default/a": 1})) is None


def test_a_victim_whose_end_costs_nothing_is_found_where_more_has_to_be_freed() -> None:
    costly, free = tenant("costly-0", "roomy", 4, idle=True), tenant("free-0", "full", 8, idle=True, loss=0)
    where = with_tenants({"roomy": 8, "full": 8}, costly, free)
    found = rearrange(Request(need=6 * GIB, priority=1), where, [costly, free], BOTH)
    assert told(found)[1] == ["default/free-0"]


def test_of_very_many_on_one_device_those_of_least_loss_go() -> None:
    many = [tenant(f"m{number:02}-0", "gpu", 1, priority=-number) for number in range(20)]
    found = rearrange(Request(need=3 * GIB, priority=1), with_tenants({"gpu": 20}, *many), many, BOTH)
    assert told(found)[1] == ["default/m17-0", "default/m18-0", "default/m19-0"]


def test_what_strangers_hold_is_not_counted_as_room() -> None:
    low = tenant("low-0", "gpu", 4)
    held = with_tenants({"gpu": 12}, low).devices[0]
    where = fleet(replace(held, free=2 * GIB, claims=(replace(held.claims[0], resident=True),)))
    assert rearrange(Request(need=6 * GIB, priority=1), where, [low], BOTH) is not None
    assert rearrange(Request(need=7 * GIB, priority=1), where, [low], BOTH) is None


def test_quotas_hold_for_the_one_that_waits_and_for_those_that_are_moved() -> None:
    team = Rule("team", namespaces=("default",), budgets=((DeviceSelector(), 6 * GIB),))
    small = tenant("small-0", "large", 4, request=Request(need=4 * GIB, rules=(team,)))
    other = tenant("other-0", "little", 3)
    where = with_tenants({"large": 24, "little": 8}, small, other)
    assert rearrange(Request(need=22 * GIB), where, [small, other]) is None
    assert rearrange(Request(need=22 * GIB), where, [replace(small, request=Request(need=4 * GIB)), other]) is not None
    within = Request(need=4 * GIB, priority=1, rules=(team,))
    full = with_tenants({"large": 24}, small)
    assert told(rearrange(within, full, [small], BOTH, "default/new"))[1] == ["default/small-0"]


def test_who_has_no_claim_there_is_passed_over() -> None:
    gone = tenant("gone-0", "large", 4)
    where = with_tenants({"large": 24, "little": 8}, tenant("other-0", "large", 4))
    assert rearrange(Request(need=22 * GIB, priority=5), where, [gone], BOTH) is None


# Laws

POLICIES = st.sampled_from(list(Policy))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Request, Fleet, list[Tenant], Limits]:
    sizes = draw(st.lists(st.integers(3, 14), min_size=1, max_size=4))
    cards = {f"gpu-{number}": gib for number, gib in enumerate(sizes)}
    tenants: list[Tenant] = []
    for gpu, gib in cards.items():
        left = gib
        for number in range(draw(st.integers(0, 3))):
            need = draw(st.integers(1, 6))
            if need > left:
                break
            left -= need
            devices = draw(st.sampled_from([(), (), (), tuple(cards)[:1], tuple(cards)[-2:]]))
            request = Request(
                need=need * GIB,
                policy=draw(POLICIES),
                devices=tuple(DeviceRef.model_validate({"uuid": f"GPU-{name}"}) for name in devices),
            )
            tenants.append(
                tenant(
                    f"{draw(st.sampled_from('abc'))}-{gpu}-{number}",
                    gpu,
                    need,
                    priority=draw(st.integers(-1, 1)),
                    idle=draw(st.booleans()),
                    movable=draw(st.sampled_from([True, True, False])),
                    evictable=draw(st.sampled_from([True, True, False])),
                    loss=draw(st.sampled_from([None, None, None, 0, GIB])),
                    request=request,
                )
            )
    where = with_tenants(cards, *tenants)
    foreign = draw(st.sampled_from([0, 0, 1]))
    if foreign:
        first = where.devices[0]
        free = max(0, (first.total or 0) - first.reserved - foreign * GIB)
        held = tuple(replace(one, resident=True) for one in first.claims)
        where = replace(where, devices=(replace(first, free=free, claims=held), *where.devices[1:]))
    named = draw(st.sampled_from([(), (), tuple(cards)[:1]]))
    request = Request(
        need=draw(st.integers(2, 14)) * GIB,
        priority=draw(st.integers(-1, 1)),
        policy=draw(POLICIES),
        devices=tuple(DeviceRef.model_validate({"uuid": f"GPU-{name}"}) for name in named),
    )
    spare = draw(st.sampled_from([{}, {}, {"default/a": 1}, {"default/b": 0}]))
    limits = Limits(moves=draw(st.integers(0, 3)), evictions=draw(st.sampled_from([0, 1, 8])), spare=spare)
    return request, where, tenants, limits


def possible(request: Request, where: Fleet, tenants: list[Tenant], limits: Limits) -> bool:
    """Tell by trying everything whether moves or evictions on one device do."""
    for gpu in {one.device for one in tenants}:
        here = [one for one in tenants if one.device == gpu]
        for number in range(1, len(here) + 1):
            for group in combinations(here, number):
                if any(count > limits.spare.get(name, 99) for name, count in _gone(group).items()):
                    continue
                bare = where.without(one.owner for one in group)
                found = place(request, bare)
                if not isinstance(found, Placement) or found.device is None:
                    continue
                lower = all(one.evictable and one.priority < request.priority for one in group)
                if lower and number <= limits.evictions:
                    return True
                after = bare.with_claim(found.device.gpu, Claim("new", "default/new", request.need))
                few = number <= min(2, limits.moves) and all(one.movable for one in group)
                light = sum(one.need for one in group) * 100 <= request.need * limits.moved_percent
                if few and light and any(_all_placed(order, after) for order in permutations(group)):
                    return True
    return False


def _gone(group: tuple[Tenant, ...]) -> Counter[str]:
    return Counter(one.deployment for one in group)


def _all_placed(group: tuple[Tenant, ...], where: Fleet) -> bool:
    for one in group:
        assert one.request is not None
        found = place(one.request, where)
        if not isinstance(found, Placement) or found.device is None or found.device.gpu == one.device:
            return False
        where = where.with_claim(found.device.gpu, Claim(one.owner, one.deployment, one.need))
    return True


def allowed(request: Request, one: Device) -> bool:
    return not request.devices or any(ref.uuid == one.uuid for ref in request.devices)


@given(situations())
def test_what_is_proposed_holds_every_law(situation: tuple[Request, Fleet, list[Tenant], Limits]) -> None:
    request, where, tenants, limits = situation
    found = rearrange(request, where, tenants, limits, "default/new")
    if found is None:
        return
    assert not (found.moves and found.evictions)
    disturbed = [*found.evictions, *(one.tenant for one in found.moves)]
    assert len({one.device for one in disturbed}) == 1
    assert len(found.moves) <= min(2, limits.moves)
    assert len(found.evictions) <= limits.evictions
    assert all(one.evictable and one.priority < request.priority for one in found.evictions)
    assert all(one.tenant.movable for one in found.moves)
    assert all(count <= limits.spare.get(name, 99) for name, count in Counter(x.deployment for x in disturbed).items())
    after = applied(found, request, where)
    for one in after.devices:
        assert one.reserved <= one.capacity(where.reserve)
    pods = [each.pod for one in after.devices for each in one.claims]
    assert len(pods) == len(set(pods))
    assert found.placement.device is not None
    assert allowed(request, found.placement.device)
    for move in found.moves:
        assert move.tenant.request is not None
        assert move.placement.device is not None
        assert allowed(move.tenant.request, move.placement.device)
        assert move.placement.device.gpu != move.tenant.device
    # True when applied: without those who leave, the one that waits is placed there by itself.
    then = place(request, where.without(one.owner for one in disturbed))
    assert isinstance(then, Placement)
    assert then.device is not None
    assert then.device.gpu == found.placement.device.gpu


@given(situations())
def test_none_is_true(situation: tuple[Request, Fleet, list[Tenant], Limits]) -> None:
    request, where, tenants, limits = situation
    needless = isinstance(place(request, where), Placement)
    expected = not needless and possible(request, where, tenants, limits)
    assert (rearrange(request, where, tenants, limits) is not None) is expected


def losses(request: Request, where: Fleet, tenants: list[Tenant], limits: Limits) -> list[tuple[int, ...]]:
    """Give what each set of victims costs that does, by trying all: priority, busy ones, loss."""
    out = []
    for one in where.devices:
        here = [each for each in tenants if each.device == one.gpu and each.evictable]
        lower = [each for each in here if each.priority < request.priority]
        for number in range(1, min(limits.evictions, len(lower)) + 1):
            for group in combinations(lower, number):
                fits = one.without(frozenset(each.owner for each in group)).available(where.reserve) >= request.need
                spared = all(count <= limits.spare.get(name, 99) for name, count in _gone(group).items())
                found = place(request, where.without(each.owner for each in group)) if fits and spared else None
                if isinstance(found, Placement) and found.device is not None:
                    out.append(loss_of(group))
    return out


def loss_of(group: Sequence[Tenant]) -> tuple[int, ...]:
    loss = sum(each.need if each.loss is None else each.loss for each in group)
    return max(each.priority for each in group), sum(not each.idle for each in group), loss


@given(situations())
def test_no_other_victims_would_be_a_smaller_loss(situation: tuple[Request, Fleet, list[Tenant], Limits]) -> None:
    request, where, tenants, limits = situation
    found = rearrange(request, where, tenants, replace(limits, moves=0))
    if found is not None:
        assert loss_of(found.evictions) == min(losses(request, where, tenants, limits))


@given(situations())
def test_no_fewer_bytes_could_be_moved(situation: tuple[Request, Fleet, list[Tenant], Limits]) -> None:
    """Fewer replicas, or as many of which fewer are busy or which are smaller, would not do."""
    request, where, tenants, limits = situation
    found = rearrange(request, where, tenants, replace(limits, evictions=0))
    if found is None:
        return
    mine = cost_of([one.tenant for one in found.moves])
    for gpu in {one.device for one in tenants}:
        here = [one for one in tenants if one.device == gpu and one.movable]
        for group in (each for number in (1, 2) for each in combinations(here, number) if cost_of(each) < mine):
            less = [one for one in tenants if one.device != gpu or one in group]
            only = rearrange(request, where, less, replace(limits, evictions=0))
            assert only is None or cost_of([one.tenant for one in only.moves]) != cost_of(group)


def cost_of(group: Sequence[Tenant]) -> tuple[int, ...]:
    return len(group), sum(not each.idle for each in group), sum(each.need for each in group)


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_devices_and_tenants_does_not_matter(
    situation: tuple[Request, Fleet, list[Tenant], Limits], chance: Any
) -> None:
    request, where, tenants, limits = situation
    devices, others = list(where.devices), list(tenants)
    chance.shuffle(devices)
    chance.shuffle(others)
    first = rearrange(request, where, tenants, limits)
    second = rearrange(request, replace(where, devices=tuple(devices)), others, limits)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert told(first) == told(second)
        assert first.sentence == second.sentence
