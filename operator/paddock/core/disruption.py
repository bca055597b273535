"""Who may be disturbed for one that waits, and how often: rights, limits and words. `moves` then finds what to do."""

from collections.abc import Iterable
from dataclasses import dataclass

from paddock.api.disruption import Disruption, Promise
from paddock.core.deployment import Deployment
from paddock.core.moves import Cost, Rearrangement
from paddock.core.quantity import human
from paddock.core.rules import Rule

MINUTE = 60.0
"""Seconds over which disruptions are counted."""
MOST_VICTIMS = 8
"""Replicas that are evicted at most for one."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The replicas of one deployment, as far as their number counts."""

    wanted: int
    serving: int
    max_unavailable: int

    @property
    def spare(self) -> int:
        """How many of those that serve may be ended now."""
        return max(0, self.max_unavailable - max(0, self.wanted - self.serving))


def left_of_minute(rules: Iterable[Rule], recent: Iterable[Promise]) -> int:
    """Give how many more may be disturbed under these rules, after what was done within the last minute."""
    left = MOST_VICTIMS
    asked = [each.deployment.partition("/")[0] for one in recent for each in one.leaving]
    for rule in rules:
        if rule.disruption is not None:
            done = sum(rule.covers(namespace) for namespace in asked)
            left = min(left, rule.disruption.per_minute - done)
    return max(0, left)


def due(interval: float, ages: Iterable[float]) -> float:
    """Give the seconds until something may be disturbed again whose disruptions are so old; 0 when it may be now."""
    return max((interval - age for age in ages if age < interval), default=0.0)


def told(found: Rearrangement) -> str:
    """Say what is done, and what it costs."""
    return f"{found.sentence} (before: {_cost(found.cost_before)}; after: {_cost(found.cost_after)})"


def _cost(cost: Cost) -> str:
    parts = []
    if cost.waiting:
        parts.append(f"{cost.waiting} waiting with {human(cost.waiting_bytes)} of priority {cost.priority}")
    if cost.restarts:
        slower = f", {cost.slower} of them slower than asked for" if cost.slower else ""
        parts.append(f"{cost.restarts} started anew with {human(cost.restarted_bytes)}{slower}")
    return ", ".join(parts) or "nobody waiting"


def on_one_device(found: Rearrangement) -> bool:
    """Tell whether all that is disturbed is on the device that the one which waits gets."""
    gpu = found.placement.device.gpu if found.placement.device is not None else None
    every = [*found.evictions, *(one.tenant for one in found.moves)]
    return all(one.device == gpu for one in every)


def last_of(
    deployment: Deployment, disruptions: Iterable[tuple[str, Promise]], stored: Disruption | None
) -> Disruption | None:
    """Give the last time that a deployment was asked to leave a GPU: what its status tells, or what came later."""
    last = stored
    for gpu, promise in disruptions:
        mine = [one for one in promise.leaving if one.deployment == deployment.key]
        if mine and promise.since >= deployment.created and (last is None or promise.since > last.at):
            last = Disruption(
                kind="Moved" if mine[0].moves else "Evicted",
                by=promise.deployment,
                gpu=gpu,
                pod_name=mine[0].pod.partition("/")[2],
                at=promise.since,
                message=promise.message,
                waiting=True,
            )
    return last
