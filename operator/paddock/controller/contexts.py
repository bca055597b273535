"""Settles how much context a deployment's replicas get, once its first replica has a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paddock.core.context import largest, largest_on_cpu, told
from paddock.core.plan import wanted_replicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddock.controller.decisions import Accepted
    from paddock.core.deployment import Deployment
    from paddock.core.fleet import Fleet
    from paddock.core.placement import Placement, Unplaceable
    from paddock.core.plan import Plan, Wanted
    from paddock.core.replica import Replica
    from paddock.core.request import Request


@dataclass(frozen=True, slots=True)
class Scene:
    """Who else of the deployment holds memory, and who is to come."""

    ending: tuple[Replica, ...]
    """Pods on their way out, those on silent nodes excepted."""
    replaced: Replica | None
    """The pod that the new one is to replace."""
    outdated: tuple[Replica, ...]
    """Pods of the older spec, `replaced` among them."""
    pods: tuple[str, ...]
    """The new pod (namespace/name), and stand-ins for the others that are to have the same context."""

    @property
    def going(self) -> tuple[Replica, ...]:
        """Pods whose room the new one may count on."""
        return self.ending if self.replaced is None else (*self.ending, self.replaced)


@dataclass(frozen=True, slots=True)
class Settled:
    """The context, and what follows from it."""

    accepted: Accepted
    decision: Placement
    beside: bool
    """Whether it fits beside the pods that are going; else they have to be gone first."""


def scene_of(
    deployment: Deployment, pod: str, wanted: Wanted, steps: Plan, is_lost: Callable[[Replica], bool]
) -> Scene:
    """Give the scene for one new pod of a plan."""
    ending = [one for one in steps.leaving if not is_lost(one)] + [one.replica for one in steps.removals]
    others = wanted_replicas(deployment) - 1 - len(steps.current)
    stand_ins = (f"{pod}-beside-{number}" for number in range(others))
    return Scene(tuple(ending), wanted.replacing, steps.outdated, (pod, *stand_ins))


def settle(
    accepted: Accepted, decision: Placement, fleet: Fleet, scene: Scene, ask: Callable[[Accepted], Request]
) -> Settled:
    """Grow the context on the device that was chosen for the least of it.

    The first pod has to fit beside what stays; the others come later, when all pods of the older spec have left.
    """
    device = decision.device
    if device is None:
        tokens = largest_on_cpu(accepted.wish, accepted.memory, lambda tokens: accepted.at(tokens).cpu_bytes)
        settled = accepted.at(tokens)
        return Settled(settled, told(decision, 0, settled.context, fleet), beside=True)
    alone = fleet.without([one.key for one in scene.going])
    later = alone.without([one.key for one in scene.outdated])
    [here] = alone.at([device.gpu])
    empty = later.with_devices([here])
    context = largest(accepted.wish, lambda tokens: ask(accepted.at(tokens)), here, scene.pods, empty)
    settled = accepted.at(context)
    need = ask(settled).need_on(device)
    beside = need <= device.available(fleet.reserve)
    return Settled(settled, told(decision, need, context, fleet if beside else alone), beside=beside)


def with_hint(refusal: Unplaceable, accepted: Accepted, name: str) -> Unplaceable:
    """Say of a context that was chosen earlier, and is kept, how it is chosen anew."""
    if accepted.open or accepted.wish.fixed:
        return refusal
    hint = f"a context of {accepted.context} tokens was chosen and is kept; paddock restart {name} chooses anew"
    return replace(refusal, message=f"{refusal.message}; {hint}")
