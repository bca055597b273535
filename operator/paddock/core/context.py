"""How much context a replica gets where its spec leaves that open.

A device is chosen for the least context; then the context grows on it, as far as room, quotas and the deployment's
other replicas allow. All replicas of one spec get the same, since clients do not see which of them answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paddock.api.context import ContextChoice, ContextRange
from paddock.api.modeldeployment import ServingSpec
from paddock.core.deployment import Deployment, placement_hash, revision
from paddock.core.fleet import Claim, Device, Fleet
from paddock.core.geometry import CONTEXT_STEP
from paddock.core.placement import Placement, place
from paddock.core.quantity import human, round_up
from paddock.core.replica import Replica
from paddock.core.request import Request
from paddock.core.rules import excess, used

AUTO_LEAST: Final = 4096
"""Tokens that Auto must find a device for."""
UNTRAINED: Final = 8192
"""Tokens that are the most for Auto where the file does not say what the model was trained with."""
MOST_LOOKED_AFTER: Final = 100
"""Replicas that room is left for; a deployment of more may have to wait for some."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a spec asks for: tokens of each request, multiples of 256."""

    least: int
    most: int

    @property
    def fixed(self) -> bool:
        """Whether nothing is left open."""
        return self.least == self.most


def wish_of(serving: ServingSpec, trained: int | None) -> Wish:
    """Give what is asked for of a model that was trained with so many tokens (None: the file does not say).

    What the model was trained with bounds what is chosen here; a number in the spec is its user's own affair.
    """
    asked = serving.context_length
    if isinstance(asked, int):
        return Wish(_rounded(asked), _rounded(asked))
    cap = max((trained or UNTRAINED) // CONTEXT_STEP, 1) * CONTEXT_STEP
    if isinstance(asked, ContextRange):
        least = _rounded(asked.least)
        return Wish(least, max(least, min(_rounded(asked.preferred), cap)))
    return Wish(min(AUTO_LEAST, cap), cap)


def _rounded(tokens: int) -> int:
    return round_up(tokens, CONTEXT_STEP)


def choice_of(deployment: Deployment, current: Iterable[Replica]) -> ContextChoice | None:
    """Give the context that was chosen for the present spec: what its pods have, else what the status remembers."""
    if deployment.spec is None or isinstance(deployment.spec.serving.context_length, int):
        return None
    spec = f"{revision(deployment)}-{placement_hash(deployment)}"
    for one in current:
        if one.record is not None and one.record.context:
            return ContextChoice(length=one.record.context, spec=spec)
    told = deployment.status.get("context")
    if isinstance(told, dict) and told.get("spec") == spec and isinstance(told.get("length"), int):
        return ContextChoice(length=told["length"], spec=spec)
    return None


def largest(wish: Wish, ask: Callable[[int], Request], first: Device, pods: Sequence[str], fleet: Fleet) -> int:
    """Give the largest context with which the first pod fits its device and the others still find theirs.

    The devices are those that the pods (namespace/name) get with the least context, which must fit. ask gives the
    request for a context.
    """
    homes = _homes(ask(wish.least), first, pods, fleet)
    if _fits(ask(wish.most), homes, fleet):
        return wish.most
    low, high = wish.least // CONTEXT_STEP, wish.most // CONTEXT_STEP - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(ask(middle * CONTEXT_STEP), homes, fleet):
            low = middle
        else:
            high = middle - 1
    return low * CONTEXT_STEP


def largest_on_cpu(wish: Wish, memory: int | None, ask: Callable[[int], int]) -> int:
    """Give the largest context whose host memory is within `memory` bytes, else the least; ask gives what one needs.

    Without a number (None) it is the least: the node, and with it what is left there, is chosen by the scheduler later.
    """
    low, high = wish.least // CONTEXT_STEP, wish.most // CONTEXT_STEP
    while memory is not None and low < high:
        middle = (low + high + 1) // 2
        if ask(middle * CONTEXT_STEP) <= memory:
            low = middle
        else:
            high = middle - 1
    return low * CONTEXT_STEP


def _homes(request: Request, first: Device, pods: Sequence[str], fleet: Fleet) -> Counter[str]:
    """Give how many of the pods are on each GPU with the least context."""
    request = replace(request, siblings=request.siblings | frozenset(pods))
    homes = Counter({first.gpu: 1})
    pod, *others = pods[: MOST_LOOKED_AFTER + 1]
    taken = fleet.with_claim(first.gpu, Claim(pod, pod, request.need_on(first), host_bytes=request.host_need))
    for other in others:
        found = place(request, taken)
        if not isinstance(found, Placement) or found.device is None:
            break
        homes[found.device.gpu] += 1
        taken = taken.with_claim(found.device.gpu, Claim(other, other, found.need, host_bytes=request.host_need))
    return homes


def _fits(request: Request, homes: Counter[str], fleet: Fleet) -> bool:
    """Tell whether so many replicas as asked for here fit on each of their GPUs at once."""
    devices = fleet.at(homes)
    total = sum(request.need_on(device) * homes[device.gpu] for device in devices)
    quotas = used(request.rules, fleet) if request.rules else {}
    hosts: Counter[str] = Counter()
    pools: set[str] = set()
    for device in devices:
        own = request.need_on(device) * homes[device.gpu]
        hosts[device.node] += request.host_need_on(device) * homes[device.gpu]
        pools |= {device.node} if device.in_host_memory else set()
        if own > device.available(fleet.reserve):
            return False
        beside = {name: size + total - own for name, size in quotas.items()}
        if request.rules and excess(request.rules, device, fleet.nodes.get(device.node), own, beside) is not None:
            return False
    claimed = fleet.host_claims()
    for name, size in hosts.items():
        node = fleet.nodes.get(name)
        if node is not None:
            limit = fleet.pool_limit(node) if name in pools else fleet.host_limit(node)
            if claimed.get(name, 0) + size > limit:
                return False
    return True


def told(decision: Placement, need: int, context: int, fleet: Fleet) -> Placement:
    """Give a decision that was taken for the least context as one for `context` tokens and `need` bytes."""
    if decision.device is None:
        return replace(decision, reason=f"{decision.reason}; context of {context} tokens")
    where, _, _ = decision.reason.rpartition("; needs ")
    left = decision.device.available(fleet.reserve)
    reason = f"{where}; needs {human(need)} of {human(left)} left, with a context of {context} tokens"
    return replace(decision, need=need, reason=reason)
