"""What to do about a deployment's pods: which to remove, which to make. Looks at values, decides, does nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paddock.api.vocabulary import Annotation
from paddock.core.deployment import Deployment, placement_hash, revision
from paddock.core.pod import pod_name
from paddock.core.replica import Replica


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod to delete, and why (for the log and the Event)."""

    replica: Replica
    why: str


@dataclass(frozen=True, slots=True)
class Departure:
    """A pod is asked to leave its device for another deployment."""

    why: str
    moves: bool
    """Whether it serves until its successor does."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A replica that has no current pod yet."""

    number: int
    replacing: Replica | None = None
    """The pod of an older spec that serves until this one is Ready."""
    attempt: int = 0
    """Part of the pod's name: how many pods of this number are held by nodes that do not answer, or are moving."""

    @property
    def replaces_a_server(self) -> bool:
        """Whether requests depend on the old pod.

        Such a one is last in a plan: whoever places another replica of the plan leaves it for the next look, so that
        two are never missing at once.
        """
        return self.replacing is not None and self.replacing.ready


@dataclass(frozen=True, slots=True)
class Plan:
    """The next steps."""

    wanted: tuple[Wanted, ...] = ()
    removals: tuple[Removal, ...] = ()
    current: tuple[Replica, ...] = ()
    """Pods that are as the spec asks, leaving ones excluded."""
    outdated: tuple[Replica, ...] = ()
    """Pods of an older spec that still serve."""
    leaving: tuple[Replica, ...] = ()
    """Pods on their way out; their device is theirs until they are gone."""


def wanted_replicas(deployment: Deployment) -> int:
    """Give how many replicas there should be now."""
    if deployment.spec is None or deployment.spec.suspend or deployment.deleting:
        return 0
    return deployment.spec.replicas


def plan(
    deployment: Deployment,
    replicas: Sequence[Replica],
    satisfies: Callable[[Replica], bool],
    lost: Callable[[Replica], bool] = lambda _: False,
    departs: Callable[[Replica], Departure | None] = lambda _: None,
) -> Plan:
    """Compare what runs with what should run.

    `satisfies` tells whether a pod's device and node are allowed by the present spec; it is asked only when
    spec.placement changed after the pod was made. `lost` tells whether a pod that is leaving is on a node that does not
    answer: nobody knows when it will be gone, so its replica is made anew under another name meanwhile. Its device
    stays reserved until it is gone. `departs` tells who is asked to leave for others: an evicted pod is removed, a
    moving one is replaced like one of an older spec, by a pod of another name.
    """
    count, wanted_revision, wanted_place = wanted_replicas(deployment), revision(deployment), placement_hash(deployment)
    mine = [one for one in replicas if one.owner_uid == deployment.uid]
    leaving = [one for one in mine if one.deleting]
    alive = [one for one in mine if not one.deleting]
    if deployment.spec is None or deployment.deleting:
        # Nobody knows what is wanted, or Kubernetes' garbage collector removes the pods as the user asked it to.
        return Plan(current=tuple(_one_each(one for one in alive if not one.failed).values()), leaving=tuple(leaving))
    removals = [Removal(one, one.waiting_message or "it failed") for one in alive if one.failed]
    # Of a deployment of this name that was deleted without its dependents: nobody else would ever end them.
    removals += [
        Removal(one, "its deployment was deleted") for one in replicas if not one.owner_uid and not one.deleting
    ]
    removals += [Removal(one, "not wanted any more") for one in alive if not one.failed and one.number >= count]
    alive = [one for one in alive if not one.failed and one.number < count]
    spoiled = {one.name for one in alive if one.spoiled}
    removals += [Removal(one, told_of_record(one)) for one in alive if one.name in spoiled]
    alive = [one for one in alive if one.name not in spoiled]
    asked = {one.name: departure for one in alive if (departure := departs(one)) is not None}
    evicted = {name for name, departure in asked.items() if not departure.moves}
    removals += [Removal(one, asked[one.name].why) for one in alive if one.name in evicted]
    alive = [one for one in alive if one.name not in evicted]

    def is_current(one: Replica) -> bool:
        return (
            one.name not in asked
            and one.revision == wanted_revision
            and (one.placement_spec == wanted_place or satisfies(one))
        )

    fresh: list[Replica] = []
    stale: list[Replica] = []
    for one in alive:
        (fresh if is_current(one) else stale).append(one)
    current, outdated = _one_each(fresh), _one_each(stale)
    kept = {one.name for one in (*current.values(), *outdated.values())}
    removals += [Removal(one, "another pod has its number") for one in alive if one.name not in kept]

    # A name is free when its pod is gone.
    taken = {one.name for one in replicas if one.owner_uid != deployment.uid or one.deleting or one.failed}
    taken |= evicted | spoiled
    away = Counter(one.number for one in leaving if lost(one))
    moving = {one.name for one in outdated.values() if one.name in asked}
    attempts = {number: away[number] for number in range(count)}
    for number, one in outdated.items():
        while one.name in moving and pod_name(deployment, wanted_revision, number, attempts[number]) in moving:
            attempts[number] += 1
    free = [n for n, attempt in attempts.items() if pod_name(deployment, wanted_revision, n, attempt) not in taken]
    up = {one.number for one in (*current.values(), *outdated.values()) if one.ready}
    settled = all(one.serving for one in current.values()) and all(
        one.number in up or one.number >= count or lost(one) for one in mine if one.deleting or one.failed
    )
    removals += [
        Removal(outdated[number], "its successor is Ready")
        for number, new in current.items()
        if new.serving and number in outdated
    ]
    missing = {number: attempts[number] for number in free if number not in current}
    wanted = _wanted(missing, outdated, settled=settled)
    return Plan(wanted, tuple(removals), tuple(current.values()), tuple(outdated.values()), tuple(leaving))


def told_of_record(one: Replica) -> str:
    """Say what was done to the record of a pod that is replaced for it."""
    return f"its annotation {Annotation.PLACEMENT} was changed by hand: {one.altered}"


def _wanted(numbers: Mapping[int, int], outdated: Mapping[int, Replica], *, settled: bool) -> tuple[Wanted, ...]:
    """Give the replicas to make now: all that are missing, and one that replaces a server when all others serve."""
    every = [Wanted(number, outdated.get(number), attempt) for number, attempt in numbers.items()]
    missing = [one for one in every if not one.replaces_a_server]
    replacing = [one for one in every if one.replaces_a_server]
    return (*missing, *(replacing[:1] if settled else ()))


def _one_each(replicas: Iterable[Replica]) -> dict[int, Replica]:
    """Keep one pod per number: one that serves first, then a Ready one, then by name."""
    out: dict[int, Replica] = {}
    for one in sorted(replicas, key=lambda one: (not one.serving, not one.ready, one.name)):
        out.setdefault(one.number, one)
    return dict(sorted(out.items()))
