"""What it costs that replicas leave a device, and what it costs at least: bounds that are quick to find."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddock.core.moves import Tenant

MOST_SUBSETS = 12
"""Replicas on one device of which every subset is tried as victims; of more, the cheapest that suffice are taken."""

_priority = attrgetter("priority")


def busy(tenants: Iterable["Tenant"]) -> int:
    """Give the number of those that answer somebody."""
    return sum([not one.idle for one in tenants])


def loss(tenants: Sequence["Tenant"]) -> tuple[int, ...]:
    """Give what the end of some replicas costs: whose, how many that answer somebody, the loss, how many, bytes."""
    size = sum([one.need for one in tenants])
    lost = sum([one.need if one.loss is None else one.loss for one in tenants])
    return (max([one.priority for one in tenants]), busy(tenants), lost, len(tenants), size)


def least_loss(short: int, tenants: list["Tenant"]) -> tuple[int, ...]:
    """Give the first parts of `loss` that no set which frees enough goes below; all together free enough."""
    ordered = sorted(tenants, key=_priority)
    freed, highest = 0, ordered[-1].priority
    for one in ordered:
        freed += one.need
        if freed >= short:
            highest = one.priority
            break
    left, awake, in_bytes = short, [], True
    for one in ordered:
        if one.priority > highest:
            break
        if one.idle:
            left -= one.need
        else:
            awake.append(one.need)
        in_bytes = in_bytes and one.loss is None
    woken = 0
    for size in sorted(awake, reverse=True) if left > 0 else ():
        if left <= 0:
            break
        left -= size
        woken += 1
    sizes = [one.need for one in ordered if one.priority <= highest and (one.idle or woken)]
    return (highest, woken, least_sum(short, sizes) if in_bytes else 0)


def least_sum(short: int, sizes: list[int]) -> int:
    """Give the least sum of some sizes that is enough; of very many sizes what is enough."""
    if len(sizes) > MOST_SUBSETS:
        return short
    least, below = sum(sizes), [0]
    for size in sizes:
        for one in [each + size for each in below]:
            if one < short:
                below.append(one)
            elif one < least:
                least = one
    return least
