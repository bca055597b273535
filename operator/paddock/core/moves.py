"""Room for one that waits, by moving or evicting others: `rearrange(request, fleet, tenants, limits)`.

Pure: it is told who may be disturbed, and says what to do; nothing is done. It asks `place` for every decision, so that
policies, selectors, quotas and named devices hold for the one that waits and for those that are moved. All that is
disturbed is on one device. Moving comes before evicting; nothing is evicted unless that suffices.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from itertools import chain, combinations
from operator import attrgetter
from typing import NamedTuple

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Claim, Device, Fleet
from paddock.core.losses import MOST_SUBSETS, busy, least_loss, loss
from paddock.core.overhead import MOST_LOWERED
from paddock.core.placement import SHORT, Placement, place
from paddock.core.policy import tokens_per_second
from paddock.core.quantity import human
from paddock.core.request import Request
from paddock.core.survey import named, survey, survey_of

MOST_MOVES = 2
"""More moves at once than this are never proposed."""
MOST_ATTEMPTS, LEAST_ATTEMPTS = 64, 8
"""Proposals that are put to the test for one question, the cheapest first: fewer, the more devices there are."""
JUDGEMENTS = 20_000
"""Devices that are judged for these tests, roughly: it bounds the time of a search that finds nothing."""

_priority, _own_loss = attrgetter("priority"), attrgetter("loss")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A replica that has memory of a device, and what may be done with it."""

    owner: str
    """namespace/name of its pod, as in its claim."""
    device: str
    """Name of the GPU object."""
    need: int
    """Bytes that it has reserved."""
    deployment: str = ""
    """namespace/name."""
    priority: int = 0
    idle: bool = False
    """Whether it answers nobody now."""
    since: str = ""
    """When it was placed, RFC 3339; of equals the younger one is disturbed."""
    movable: bool = False
    """Whether it may be restarted on another device."""
    evictable: bool = False
    """Whether it may be ended for one of higher priority."""
    loss: int | None = None
    """What its restart costs, in whatever unit is the same for all; None: its bytes, which are what is read again."""
    request: Request | None = None
    """What it asks for; without it, it is not moved."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be disturbed for one that waits. Victims have a strictly lower priority, always."""

    moves: int = MOST_MOVES
    """Replicas that may be moved; 0: none, and never more than two."""
    evictions: int = 0
    """Replicas that may be evicted; 0: none."""
    moved_percent: int = 150
    """Bytes that may be moved, in per cent of what the one that waits needs."""
    spare: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Replicas of a deployment that may be down at once now, by namespace/name; one that is absent may lose all."""


class Move(NamedTuple):
    """One replica and its new place."""

    tenant: Tenant
    placement: Placement
    slower: bool = False
    """Whether it had the speed that it asks for, and has not there."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What is without a device, and what is interrupted."""

    waiting: int = 0
    """Replicas without a device."""
    waiting_bytes: int = 0
    priority: int | None = None
    """The highest of those that wait."""
    restarts: int = 0
    """Replicas that are interrupted, and served again elsewhere."""
    restarted_bytes: int = 0
    busy: int = 0
    """Of all that are interrupted or ended, those that answer somebody now."""
    slower: int = 0
    """Of those that are served elsewhere, those that lose the speed that they ask for."""


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """What to do so that the one that waits gets a device. Either moves or evictions, all off one device."""

    placement: Placement
    """Of the one that waits, once the others are gone."""
    moves: tuple[Move, ...] = ()
    """In the order in which their places were found."""
    evictions: tuple[Tenant, ...] = ()
    cost_before: Cost = Cost()
    cost_after: Cost = Cost()
    sentence: str = ""


class _Crowded(NamedTuple):
    """A device that would do but for what is on it."""

    gpu: str
    device: Device
    need: int
    missing: int
    """Bytes that must be freed on it at least."""


class _Group(NamedTuple):
    """Replicas of one device whose leaving may do. Sorts by what it costs, then by names."""

    cost: tuple[int, ...]
    gpu: str
    names: tuple[str, ...]
    """Of the tenants, in their order."""
    tenants: tuple[Tenant, ...]
    crowded: _Crowded


class _Source(NamedTuple):
    """A device, who is said to be there, and what its cheapest group costs at least: a bound that is quick to find."""

    least: tuple[int, ...]
    gpu: str
    crowded: _Crowded
    tenants: list[Tenant]
    rough: bool = False
    """Whether a closer look at its tenants gives a higher bound."""


def rearrange(
    request: Request, fleet: Fleet, tenants: Iterable[Tenant], limits: Limits | None = None, waiting: str = ""
) -> Rearrangement | None:
    """Find room for a request that `place` refuses; None when the limits allow none, or when it needs none.

    `waiting` is the deployment (namespace/name) that the request is for: quotas count what it gets, too.
    Tenants whose claim is not on their device in this fleet are passed over, as are the request's own siblings.
    """
    found = place(request, fleet)
    if isinstance(found, Placement):
        return None
    search = _Search(_Question(request, fleet, limits or Limits(), waiting), tenants)
    return search.moves() or search.evictions()


class _Question(NamedTuple):
    request: Request
    fleet: Fleet
    limits: Limits
    waiting: str


class _Search:
    """The search for one answer."""

    def __init__(self, question: _Question, tenants: Iterable[Tenant]) -> None:
        self.request, self.fleet, self.limits, self.waiting = question
        self.crowded = _crowded(self.request, self.fleet)
        self.tenants = there = defaultdict[str, list[Tenant]](list)
        for one in tenants:
            there[one.device].append(one)
        self.attempts = max(LEAST_ATTEMPTS, min(MOST_ATTEMPTS, JUDGEMENTS // max(1, len(self.fleet.devices))))
        self.most_moves = min(self.limits.moves, MOST_MOVES)
        self.roomiest = _Roomiest(self.fleet)
        self.slower: Rearrangement | None = None
        """The cheapest moves after which some are slower than they ask for."""

    def moves(self) -> Rearrangement | None:
        """Move as few replicas as do, those that answer nobody first, then as few bytes as do.

        Those that keep the speed which they ask for go before all others.
        """
        return (
            self._cheapest(self._with_movable(), self._closer_movable, self._movable_groups, self._moved) or self.slower
        )

    def evictions(self) -> Rearrangement | None:
        """Evict those of lowest priority that do, the idle ones first, then with the least loss."""
        return self._cheapest(self._with_evictable(), self._closer_evictable, self._evictable_groups, self._evicted)

    def _cheapest(
        self,
        waiting: list[_Source],
        closer: Callable[[_Source], _Source | None],
        groups: Callable[[_Source], Iterable[_Group]],
        trial: Callable[[_Group], Rearrangement | None],
    ) -> Rearrangement | None:
        """Put groups to the test, the cheapest first, until one does.

        The groups of a device are formed only once nothing cheaper is left than the least that they can cost.
        """
        heapify(waiting)
        heap: list[_Group] = []
        attempts = self.attempts
        while heap or waiting:
            while waiting and (not heap or waiting[0].least <= heap[0].cost):
                source = heappop(waiting)
                if source.rough:
                    if (looked_at := closer(source)) is not None:
                        heappush(waiting, looked_at)
                    continue
                for group in groups(source):
                    heappush(heap, group)
            equals: list[_Group] = []
            while heap and (not equals or heap[0].cost == equals[0].cost):
                equals.append(heappop(heap))
            for group in self._by_policy([one for one in equals if self._may_do(one)]):
                if not attempts:
                    return None
                attempts -= 1
                found = trial(group)
                if found is not None:
                    return found
        return None

    def _by_policy(self, groups: list[_Group]) -> list[_Group]:
        """Order groups of one cost: first on the device that the request would pick among theirs, then by name."""
        # Of groups on one device, the one whose eldest is the youngest: it has gained least from its place.
        groups = sorted(groups, key=lambda one: min(each.since for each in one.tenants), reverse=True)
        ordered = sorted(groups, key=lambda one: one.gpu)
        firsts = {one.gpu: one for one in reversed(ordered)}
        if len(firsts) <= 1:
            return ordered
        freed = self.fleet.without(name for one in firsts.values() for name in one.names)
        found = place(self.request, freed)
        gpu = found.device.gpu if isinstance(found, Placement) and found.device is not None else ""
        return sorted(ordered, key=lambda one: one.gpu != gpu)

    # Moves

    def _with_movable(self) -> list[_Source]:
        """Give the devices that one or two may leave for others with room for them."""
        if self.most_moves <= 0:
            return []
        left = self.roomiest.first
        everybody = chain.from_iterable(self.tenants.values())
        largest = max([one.need for one in everybody if _could_move(one, left)], default=0)
        # Devices that need two go after all others, and those that need more are not looked at.
        return [
            each._replace(least=(MOST_MOVES, 0, each.crowded.missing)) if each.crowded.missing > largest else each
            for each in self._sources((1, 0), in_bytes=True)
            if each.crowded.missing <= self.most_moves * largest
        ]

    def _closer_movable(self, source: _Source) -> _Source | None:
        """Give a device with those who may be moved, and what it costs at least; None where they are not enough."""
        crowded, left = source.crowded, self.roomiest.beside(source.gpu)
        missing, most = crowded.missing, crowded.need * self.limits.moved_percent // 100
        movable = [one for one in source.tenants if one.need <= most and _could_move(one, left)]
        needs = sorted([one.need for one in movable])
        if not needs or sum(needs[-self.most_moves :]) < missing:
            return None
        if needs[-1] >= missing:
            alone = min([(not one.idle, one.need) for one in movable if one.need >= missing])
            return _Source((1, *alone), source.gpu, crowded, movable)
        return _Source((MOST_MOVES, 0, missing), source.gpu, crowded, movable)

    def _movable_groups(self, source: _Source) -> Iterator[_Group]:
        """Give its groups of one or two whose leaving may do."""
        crowded, most = source.crowded, source.crowded.need * self.limits.moved_percent // 100
        movable = self._true(crowded, source.tenants)
        for number in range(source.least[0], self.most_moves + 1):
            for group in combinations(movable, number):
                size = sum([one.need for one in group])
                if crowded.missing <= size <= most:
                    yield _Group((number, busy(group), size), source.gpu, _names(group), group, crowded)

    def _moved(self, group: _Group) -> Rearrangement | None:
        """Place the one that waits, then those that made room, in both orders if need be."""
        bare = self.fleet.without(group.names)
        mine = _placed(self.request, bare)
        if mine is None:
            return None
        rest = _with(bare, Claim("", self.waiting, mine.need, host_bytes=self.request.host_need), mine)
        largest_first = sorted(group.tenants, key=lambda one: (-one.need, one.owner))
        for order in (largest_first, largest_first[::-1])[: len(largest_first)]:
            moves = self._rehoused(order, rest)
            if moves is not None and not any(one.slower for one in moves):
                return self._told(mine, moves=moves)
            if moves is not None and self.slower is None and self._worth_it(mine, moves):
                self.slower = self._told(mine, moves=moves)
        return None

    def _worth_it(self, mine: Placement, moves: Iterable[Move]) -> bool:
        """Tell whether others may get slower: of no higher priority, and no more bytes than get a place for it."""
        slower = [one.tenant for one in moves if one.slower]
        fewer = sum(one.need for one in slower) <= mine.need
        return fewer and all(one.priority <= self.request.priority for one in slower)

    def _rehoused(self, tenants: Iterable[Tenant], fleet: Fleet) -> tuple[Move, ...] | None:
        """Find a place for each where its own request would put it; None when one has none."""
        out = []
        for one in tenants:
            assert one.request is not None  # noqa: S101 only such are in a group
            found = _placed(one.request, fleet)
            if found is None or found.device is None or found.device.gpu == one.device:
                return None
            (before,) = self.fleet.at([one.device])
            slower = _reaches(one.request, before) and not _reaches(one.request, found.device)
            out.append(Move(one, found, slower))
            there = Claim(one.owner, one.deployment, found.need, host_bytes=one.request.host_need)
            fleet = _with(fleet, there, found)
        return tuple(out)

    # Evictions

    def _with_evictable(self) -> list[_Source]:
        """Give the devices on which the end of those of lower priority may do."""
        if self.limits.evictions <= 0:
            return []
        everybody = list(chain.from_iterable(self.tenants.values()))
        lowest = min(map(_priority, everybody), default=0)
        in_bytes = not set(map(_own_loss, everybody)) - {None}
        return self._sources((lowest, 0), in_bytes=in_bytes)

    def _closer_evictable(self, source: _Source) -> _Source | None:
        """Give a device with the bound that those have who may be evicted there; None where they are not enough."""
        crowded, priority = source.crowded, self.request.priority
        lower = [one for one in source.tenants if one.evictable and one.priority < priority]
        if not lower or sum([one.need for one in lower]) < crowded.missing:
            return None
        return _Source(least_loss(crowded.missing, lower), source.gpu, crowded, lower)

    def _evictable_groups(self, source: _Source) -> Iterator[_Group]:
        """Give its sets whose end may do."""
        for group in self._subsets(source.crowded, self._true(source.crowded, source.tenants)):
            if len(group) <= self.limits.evictions and sum([one.need for one in group]) >= source.crowded.missing:
                yield _Group(loss(group), source.gpu, _names(group), group, source.crowded)

    def _subsets(self, crowded: _Crowded, tenants: Sequence[Tenant]) -> Iterator[tuple[Tenant, ...]]:
        """Give every subset; of very many tenants only the one of least loss, less those that need not go."""
        if len(tenants) <= MOST_SUBSETS:
            for number in range(1, len(tenants) + 1):
                yield from combinations(tenants, number)
            return
        chosen: list[Tenant] = []
        for one in sorted(tenants, key=lambda each: (loss((each,)), each.owner)):
            chosen.append(one)
            if self._enough(crowded, chosen):
                break
        for one in chosen[::-1]:
            fewer = [each for each in chosen if each is not one]
            chosen = fewer if fewer and self._enough(crowded, fewer) else chosen
        yield tuple(sorted(chosen, key=lambda one: one.owner))

    def _evicted(self, group: _Group) -> Rearrangement | None:
        mine = _placed(self.request, self.fleet.without(group.names))
        return None if mine is None else self._told(mine, evictions=group.tenants)

    # Both

    def _sources(self, least: tuple[int, int], *, in_bytes: bool) -> list[_Source]:
        """Give the devices that would do but for what is on them, with a first bound of what they cost."""
        there = self.tenants
        return [
            _Source((*least, crowded.missing if in_bytes else 0), crowded.gpu, crowded, there[crowded.gpu], rough=True)
            for crowded in self.crowded
            if crowded.gpu in there
        ]

    def _true(self, crowded: _Crowded, tenants: Iterable[Tenant]) -> list[Tenant]:
        """Give those whose claims are there, in the order of their names."""
        owners = {claim.pod for claim in crowded.device.claims} - self.request.siblings
        true = {one.owner: one for one in tenants if one.owner in owners}
        return [true[owner] for owner in sorted(true)]

    def _may_do(self, group: _Group) -> bool:
        """Tell whether the memory would be enough without them, and their deployments can spare them."""
        if not self._enough(group.crowded, group.tenants):
            return False
        gone = Counter(one.deployment for one in group.tenants)
        return all(number <= self.limits.spare.get(name, number) for name, number in gone.items())

    def _enough(self, crowded: _Crowded, group: Sequence[Tenant]) -> bool:
        """Tell whether the device's memory would be enough; host memory and quotas are left to `place`."""
        freed = crowded.device.without(frozenset(one.owner for one in group))
        return freed.available(self.fleet.reserve) >= crowded.need

    def _told(self, mine: Placement, moves: tuple[Move, ...] = (), evictions: tuple[Tenant, ...] = ()) -> Rearrangement:
        request = self.request
        before = Cost(1, mine.need, request.priority)
        after = Cost(
            waiting=len(evictions),
            waiting_bytes=sum(one.need for one in evictions),
            priority=max((one.priority for one in evictions), default=None),
            restarts=len(moves),
            restarted_bytes=sum(one.tenant.need for one in moves),
            busy=busy([*evictions, *(one.tenant for one in moves)]),
            slower=sum(one.slower for one in moves),
        )
        return Rearrangement(mine, moves, evictions, before, after, self._sentence(mine, moves, evictions))

    def _sentence(self, mine: Placement, moves: Sequence[Move], evictions: Sequence[Tenant]) -> str:
        parts = [
            f"moves {_called(one.tenant)} ({human(one.tenant.need)}) from {one.tenant.device} to {_gpu(one.placement)}"
            + (", where it is slower than it asks for" if one.slower else "")
            for one in moves
        ]
        parts += [
            f"evicts {_called(one)} ({human(one.need)}, priority {one.priority}, {'idle' if one.idle else 'busy'})"
            f" from {one.device}"
            for one in evictions
        ]
        rank = f" of priority {self.request.priority}" if evictions else ""
        who = f"{self.waiting or 'what waits'} ({human(mine.need)}{rank})"
        return f"{'; '.join(parts)}: then {who} fits on {_gpu(mine)}"


class _Roomiest:
    """The most memory that is left on any device, and on any but one."""

    def __init__(self, fleet: Fleet) -> None:
        left = nlargest(2, (one[:2] for members in fleet.index.families.values() for one in members[-2:]))
        self.first, self.gpu = left[0] if left else (0, "")
        self.second = left[1][0] if len(left) > 1 else 0

    def beside(self, gpu: str) -> int:
        """Give the most bytes that are left on any other device."""
        return self.second if gpu == self.gpu else self.first


def _could_move(tenant: Tenant, left: int) -> bool:
    """Tell whether a replica may be moved, and needs no more than is left somewhere."""
    asked = tenant.request
    if not tenant.movable or asked is None:
        return False
    return (asked.least_need if asked.needs else asked.need - MOST_LOWERED) <= left


def _crowded(request: Request, fleet: Fleet) -> list[_Crowded]:
    """Give the devices that would do but for what is on them."""
    if request.on_cpu:
        return []
    found = survey_of(request, fleet, named(request.devices, fleet)) if request.devices else survey(request, fleet)
    return [
        _Crowded(one.gpu, one.device, part.need, max(0, part.need - one.available))
        for part in found.of(*SHORT)
        for one in part.members
    ]


def _placed(request: Request, fleet: Fleet) -> Placement | None:
    """Give the place on a device; the CPU is none here."""
    found = place(request, fleet)
    return found if isinstance(found, Placement) and found.device is not None else None


def _with(fleet: Fleet, claim: Claim, found: Placement) -> Fleet:
    assert found.device is not None  # noqa: S101 see _placed
    return fleet.with_claim(found.device.gpu, claim)


def _reaches(request: Request, device: Device) -> bool:
    """Tell whether a device has the speed that is asked for, where that is asked for at all."""
    if request.min_tokens_per_second is None or request.policy not in (Policy.AUTO, Policy.JUST_FAST_ENOUGH):
        return True
    return (tokens_per_second(device, request.token_bytes) or 0) >= request.min_tokens_per_second


def _names(tenants: Iterable[Tenant]) -> tuple[str, ...]:
    return tuple([one.owner for one in tenants])


def _called(tenant: Tenant) -> str:
    return tenant.deployment or tenant.owner


def _gpu(placement: Placement) -> str:
    return placement.device.gpu if placement.device is not None else "the CPU"
