"""Who is ahead, and that nobody takes their room."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Claim, Fleet
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.queue import Queued, ahead_of, kept_for, order_of, position
from paddock.core.request import Request
from support.builders import GIB, deployment, device, fleet


def queued(name: str, *sizes: int, priority: int = 0, policy: Policy = Policy.AUTO) -> Queued:
    """Give one that waits for replicas of these sizes in GiB."""
    requests = {f"{name}-{number}": Request(need=size * GIB, policy=policy) for number, size in enumerate(sizes)}
    return Queued((-priority, "2026-01-01T00:00:00Z", name), requests)


def cards(*sizes: int) -> Fleet:
    return fleet(*(device(f"gpu-{n}", total=size * GIB, free=None, pci_id=None) for n, size in enumerate(sizes)))


def test_the_order_is_priority_then_age_then_name() -> None:
    made = [
        replace(deployment(name, priority=priority), created=created)
        for name, priority, created in [
            ("low", -1, "2025-01-01T00:00:00Z"),
            ("b", 0, "2026-01-01T00:00:00Z"),
            ("a", 0, "2026-01-01T00:00:00Z"),
            ("old", 0, "2025-06-01T00:00:00Z"),
            ("high", 7, "2026-06-01T00:00:00Z"),
        ]
    ]
    assert [one.name for one in sorted(made, key=order_of)] == ["high", "old", "a", "b", "low"]


def test_only_those_who_ask_for_something_are_ahead() -> None:
    queue = [queued("c", 1), queued("a", 1), queued("b"), queued("first", 1, priority=3)]
    assert [one.deployment for one in ahead_of(queue, queued("c").order)] == ["first", "a"]


def test_room_is_kept_for_those_ahead_who_fit_and_not_for_those_who_do_not() -> None:
    where = cards(8, 4)
    large, small = queued("large", 20), queued("small", 6, 3)
    kept, names = kept_for([large, small], where)
    assert names == ["small"]
    assert [one.reserved // GIB for one in kept.devices] == [6, 3]
    assert isinstance(place(Request(need=2 * GIB), kept), Placement)
    assert isinstance(place(Request(need=3 * GIB), kept), Unplaceable)
    assert kept_for([large], where) == (where, [])
    assert kept_for([small], fleet()) == (fleet(), [])


def test_who_is_promised_memory_may_go_elsewhere() -> None:
    where, waits = cards(8, 4), queued("waits", 6)
    pod = next(iter(waits.requests))
    held = where.with_claim(where.devices[0].gpu, Claim(pod, "waits", 6 * GIB, promised=True))
    full = held.with_claim(where.devices[0].gpu, Claim("x/old", "x", 7 * GIB))
    assert kept_for([waits], full, {pod}) == (full, []), "not yet: the promise stands where it was made"
    kept, names = kept_for([waits], held, {pod})
    assert names == ["waits"]
    assert [one.reserved // GIB for one in kept.devices] == [6, 0], "not twice"


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6),
    st.lists(st.integers(2, 12), min_size=1, max_size=4),
    st.sampled_from(Policy),
)
def test_nobody_takes_the_room_of_the_first_ahead_who_fits(needs: list[int], sizes: list[int], policy: Policy) -> None:
    *queue, last = [queued(f"m{number}", need, policy=policy) for number, need in enumerate(needs)]
    where = cards(*sizes)
    first = next((one for one in queue if _found(one, where)), None)
    kept, names = kept_for(ahead_of(queue, last.order), where)
    assert names[:1] == ([first.deployment] if first else [])
    found = _found(last, kept)
    if first is not None and found is not None:
        assert _found(first, where.with_claim(found, Claim("x", "x", needs[-1] * GIB)))


def _found(one: Queued, where: Fleet) -> str | None:
    (request,) = one.requests.values()
    found = place(request, where)
    return found.device.gpu if isinstance(found, Placement) and found.device is not None else None


@pytest.mark.parametrize(
    ("ahead", "told"),
    [(0, 1), (9, 10), (10, 20), (19, 20), (20, 30), (98, 100), (99, 100), (100, 200), (199, 200), (4711, 5000)],
)
def test_far_positions_are_told_in_steps(ahead: int, told: int) -> None:
    assert position(ahead) == told
