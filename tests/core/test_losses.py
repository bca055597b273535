"""What leaving costs at least is never more than what it costs."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from paddock.core.losses import MOST_SUBSETS, least_loss, least_sum, loss
from paddock.core.moves import Tenant

SIZES = st.integers(1, 30)


@st.composite
def tenants(draw: st.DrawFn) -> list[Tenant]:
    """Give some on one device, in whatever order."""
    parts = st.tuples(SIZES, st.integers(-1, 1), st.booleans(), st.sampled_from([None, None, None, 0, 7]))
    return [
        Tenant(f"m{number}", "gpu", need, priority=priority, idle=idle, loss=lost)
        for number, (need, priority, idle, lost) in enumerate(draw(st.lists(parts, min_size=1, max_size=6)))
    ]


@given(tenants(), st.integers(0, 200))
def test_no_set_that_frees_enough_costs_less_than_the_bound(some: list[Tenant], short: int) -> None:
    short = min(short, sum(one.need for one in some))
    sets = [each for number in range(1, len(some) + 1) for each in combinations(some, number)]
    least = min(loss(each) for each in sets if sum(one.need for one in each) >= short)
    bound = least_loss(short, some)
    assert bound <= least
    if all(one.idle and one.loss is None for one in some):
        assert bound == least[:3]  # Not only below it: then no set of a device is formed in vain.


@given(st.lists(SIZES, min_size=1, max_size=MOST_SUBSETS + 1), st.integers(0, 400))
def test_the_least_sum_that_is_enough(sizes: list[int], short: int) -> None:
    short = min(short, sum(sizes))
    found = least_sum(short, sizes)
    if len(sizes) > MOST_SUBSETS:
        assert found == short
        return
    sums = {0}
    for size in sizes:
        sums |= {each + size for each in sums}
    assert found == min(each for each in sums - {0} if each >= short)
