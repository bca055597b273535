"""Room for those that wait: others are asked to leave a GPU, by rules that the owner of the fleet sets.

Nobody is ended here. The memory is promised on the GPU object, with the pods that have to leave; each deployment finds
there, at its own look, what its pods are asked, and does it as it does all else. So an operator that was killed goes on
where it was, and nobody else gets memory that is promised. The promise becomes a reservation once the pods are gone and
the agent reports their memory back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from paddock.api.disruption import Disruption, Leaving, Promise
from paddock.api.vocabulary import Reason
from paddock.controller.asking import idle_among
from paddock.controller.clock import now
from paddock.controller.decisions import candidates_of, request_with
from paddock.controller.ledger import ConflictError
from paddock.controller.parts import Parts
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.deployment import Deployment
from paddock.core.disruption import (
    MINUTE,
    MOST_VICTIMS,
    Crew,
    due,
    last_of,
    left_of_minute,
    on_one_device,
    told,
)
from paddock.core.fleet import Fleet
from paddock.core.moves import MOST_MOVES, Limits, Rearrangement, Tenant, rearrange
from paddock.core.placement import SHORT, Placement, Unplaceable
from paddock.core.plan import Departure, Wanted, wanted_replicas
from paddock.core.queue import order_of
from paddock.core.replica import Replica
from paddock.core.request import Request
from paddock.core.rules import Leave, leave_under, rules_for
from paddock.core.source import parse_any
from paddock.core.status import Finding, last_disruption

log = logging.getLogger("paddock.moves")
PATIENCE = 900.0
"""Seconds after which a promise is taken back that was not kept: a pod did not end, or a moved one did not load."""
LONGEST_REST = 10.0
REST = 20.0
"""A search is followed by a pause of so many times its length, so that searching is a small part of all work."""
Asked = tuple[Fleet, Placement | Unplaceable]


@dataclass(frozen=True, slots=True)
class Offer:
    """Who may be disturbed, and when that will be more."""

    tenants: tuple[Tenant, ...]
    limits: Limits
    later: float
    """Seconds until somebody may be disturbed who may not be now; 0: time changes nothing."""


class Moves:
    """Asks others to leave, and tells each who was asked."""

    def __init__(
        self, settings: Settings, world: World, parts: Parts, look_again: Callable[[str, float], None]
    ) -> None:
        self._settings, self._world, self._look_again = settings, world, look_again
        self._ledger, self._models, self._events = parts.ledger, parts.models, parts.events
        self._recent: dict[tuple[str, str], Promise] = {}
        """Of the last minute, by GPU and time: a GPU object holds only its last one."""
        self._rest_until = 0.0
        self._one_at_a_time = asyncio.Lock()
        """Held from the look at who may be disturbed until that is written, so that nobody is counted on twice."""

    # -- what a deployment's own pods are asked --------------------------------------------------------------------

    def departure(self, replica: Replica) -> Departure | None:
        """Tell whether a pod is asked to leave."""
        for _, promise, one in self._asked():
            if one.uid == replica.uid:
                return Departure(f"{promise.deployment} gets its memory: {promise.message}", bool(one.moves))
        return None

    def last(self, deployment: Deployment) -> Disruption | None:
        """Give the last time that a replica was asked to leave."""
        return last_of(deployment, self._ledger.disruptions(), last_disruption(deployment))

    async def tidy(self, key: str, deployment: Deployment | None, pods: Collection[str] = ()) -> None:
        """Take back promises to pods (namespace/name) of a deployment that nobody wants, and those against its will."""
        for _, promise in self._ledger.promises():
            mine = promise.deployment == key
            if mine and (deployment is None or promise.uid != deployment.uid or promise.pod not in pods):
                await self._withdraw(promise)
        if deployment is not None and deployment.spec is not None and not deployment.spec.disruption.allowed:
            for _, promise, one in self._asked():
                if one.deployment == key:
                    await self._withdraw(promise)

    async def give_up(self, replica: Replica, why: str) -> None:
        """Take back the promise for which a pod was to move: there is no place for its successor."""
        for gpu, promise, one in self._asked():
            if one.uid == replica.uid:
                await self._abandon(gpu, promise, f"{replica.key} finds no other place: {why}")

    def _asked(self) -> list[tuple[str, Promise, Leaving]]:
        return [(gpu, promise, one) for gpu, promise in self._ledger.promises() for one in promise.leaving]

    # -- what one that waits is promised ---------------------------------------------------------------------------

    def kept_behind(self, deployment: Deployment) -> set[str]:
        """Give the pods for which room is only kept, and not against this deployment: it comes before them."""
        order, out = order_of(deployment), set()
        for _, promise in self._ledger.promises():
            owner = self._world.deployments.get(promise.deployment)
            if not promise.leaving and owner is not None and order < order_of(owner):
                out.add(promise.pod)
        return out

    async def make_room(
        self, deployment: Deployment, pod: str, request: Request, ask: Callable[[], Asked]
    ) -> Finding | None:
        """See to it that a pod (namespace/name) gets room; a Finding while that is under way.

        `ask` asks for a device anew: while the neighbours were looked at, the fleet may have changed.
        """
        for gpu, promise in self._ledger.promises():
            if promise.pod == pod:
                return await self._standing(deployment, gpu, promise)
        leave = leave_under(rules_for(deployment.namespace, self._world.rules.values()))
        later: list[float] = []
        if leave.moves or leave.eviction:
            pause = self._rest_until - asyncio.get_running_loop().time()
            if pause > 0:
                self._look_again(deployment.key, pause)
                return None
            async with self._one_at_a_time:
                finding = await self._disturb(deployment, pod, request, leave, ask, later)
            if finding is not None:
                return finding
        finding = await self._keep(deployment, pod, request, leave, ask, later)
        if finding is None and later:
            self._look_again(deployment.key, min(later) + 0.1)
        return finding

    async def _disturb(
        self,
        deployment: Deployment,
        pod: str,
        request: Request,
        leave: Leave,
        ask: Callable[[], Asked],
        later: list[float],
    ) -> Finding | None:
        """Find who has to leave, write the promise, and only then have them looked at."""
        begin = asyncio.get_running_loop().time()
        if not self._world.deployments.is_current(deployment):
            return None
        _, refusal = ask()
        offer = await self._offer(deployment, leave, refusal)
        fleet, refusal = ask()
        if isinstance(refusal, Placement) or not self._world.deployments.is_current(deployment):
            self._look_again(deployment.key, 0.0)
            return None
        found = rearrange(request, fleet, offer.tenants, offer.limits, deployment.key)
        end = asyncio.get_running_loop().time()
        self._rest_until = end + min(LONGEST_REST, REST * (end - begin))
        if found is None or found.placement.device is None or not on_one_device(found):
            later += [offer.later] if offer.later else []
            return None
        promise = self._promise(deployment, pod, request, found.placement.need, told(found), self._leaving(found))
        gpu = found.placement.device.gpu
        self._recent[gpu, promise.since] = promise
        try:
            await self._ledger.promise(gpu, promise)
        except ConflictError:
            self._look_again(deployment.key, 0.1)
            return None
        log.info("%s: %s", deployment.key, promise.message)
        self._events.normal(deployment, Reason.MAKING_ROOM, f"on {gpu}: {promise.message}")
        for one in promise.leaving:
            self._look_again(one.deployment, 0.0)
        return await self._standing(deployment, gpu, promise)

    def _leaving(self, found: Rearrangement) -> list[Leaving]:
        asked = [(one.tenant, True) for one in found.moves] + [(one, False) for one in found.evictions]
        return [
            Leaving(pod=one.owner, uid=there.uid, deployment=one.deployment, moves=moves or None)
            for one, moves in asked
            if (there := self._world.replicas.get(one.owner)) is not None
        ]

    def _promise(
        self, deployment: Deployment, pod: str, request: Request, size: int, message: str, leaving: list[Leaving]
    ) -> Promise:
        return Promise(
            pod=pod,
            deployment=deployment.key,
            uid=deployment.uid,
            priority=request.priority,
            bytes=size,
            host_bytes=request.host_need or None,
            since=now(),
            leaving=leaving,
            message=message[:1000],
        )

    async def _standing(self, deployment: Deployment, gpu: str, promise: Promise) -> Finding | None:
        """Say what a promise waits for, or take it back when it has waited too long."""
        if not promise.leaving:
            return Finding("False", Reason.MAKING_ROOM, f"room is kept on {gpu}: {promise.message}")
        there = [one for one in promise.leaving if self._is_there(one)]
        if there:
            names = ", ".join(one.pod for one in there)
            waits = f"waits until {names} {'is' if len(there) == 1 else 'are'} gone"
        else:
            waits = f"waits until {gpu} reports the memory back"
        left = PATIENCE - _age(promise.since)
        device = self._ledger.fleet(self._world.nodes).device(gpu)
        if left <= 0 or device is None or not device.ready:
            why = f"{waits.removeprefix('waits until ')} is not yet so" if left <= 0 else f"{gpu} is not ready any more"
            await self._abandon(gpu, promise, why)
            return None
        self._look_again(deployment.key, left + 0.1)
        return Finding("False", Reason.MAKING_ROOM, f"{waits}; {promise.message}")

    def _is_there(self, one: Leaving) -> bool:
        replica = self._world.replicas.get(one.pod)
        return replica is not None and replica.uid == one.uid

    async def _keep(
        self,
        deployment: Deployment,
        pod: str,
        request: Request,
        leave: Leave,
        ask: Callable[[], Asked],
        later: list[float],
    ) -> Finding | None:
        """Keep room for one that has waited for long, where least is missing."""
        if leave.hold_after is None:
            return None
        since = next(
            (
                one["lastTransitionTime"]
                for one in deployment.status.get("conditions") or ()
                if one.get("type") == "Placed" and one.get("status") == "False"
            ),
            None,
        )
        waited = _age(since) if since is not None else 0.0
        if waited < leave.hold_after:
            later.append(leave.hold_after - waited + 1.0)
            return None
        _, refusal = ask()
        promised = {gpu for gpu, _ in self._ledger.promises()}
        if isinstance(refusal, Placement) or refusal.nearest is None or refusal.nearest.device.gpu in promised:
            return None
        if not self._world.deployments.is_current(deployment):
            return None
        gpu = refusal.nearest.device.gpu
        message = f"it has waited for more than {leave.hold_after} seconds"
        promise = self._promise(deployment, pod, request, refusal.nearest.need, message, [])
        try:
            await self._ledger.promise(gpu, promise)
        except ConflictError:
            self._look_again(deployment.key, 0.1)
            return None
        self._events.normal(deployment, Reason.MAKING_ROOM, f"room is kept on {gpu}: {message}")
        return await self._standing(deployment, gpu, promise)

    async def _abandon(self, gpu: str, promise: Promise, why: str) -> None:
        log.warning("%s is not promised memory on %s any more: %s", promise.pod, gpu, why)
        owner = self._world.deployments.get(promise.deployment)
        if owner is not None:
            self._events.warning(owner, Reason.ROOM_NOT_FREED, f"on {gpu}: {why}")
        await self._withdraw(promise)

    async def _withdraw(self, promise: Promise) -> None:
        await self._ledger.withdraw(promise.pod)
        for one in {promise.deployment, *(each.deployment for each in promise.leaving)}:
            self._look_again(one, 0.0)

    # -- who may be disturbed --------------------------------------------------------------------------------------

    async def _offer(self, deployment: Deployment, leave: Leave, refusal: Placement | Unplaceable) -> Offer:
        """Give who may be disturbed for a deployment on the devices where only memory is missing."""
        self._remember()
        every = self._world.rules.values()
        short = {one.device.gpu for one in refusal.judged if one.verdict in SHORT}
        disturbed = dict(self._ledger.disruptions())
        busy = {gpu for gpu, _ in self._ledger.promises()}
        left = left_of_minute(rules_for(deployment.namespace, every), self._recent.values())
        later = [MINUTE] if not left else []
        tenants: list[Tenant] = []
        spare: dict[str, int] = {}
        for replica in self._world.replicas.values() if left else ():
            gpu = replica.record.gpu if replica.record is not None else None
            owner = self._world.deployments.get(f"{replica.namespace}/{replica.deployment}")
            if gpu not in short or gpu in busy or owner is None or owner.key == deployment.key:
                continue
            rules = rules_for(owner.namespace, every)
            theirs = leave_under(rules)
            there = [_age(disturbed[gpu].since)] if gpu in disturbed else []
            wait = max(due(theirs.interval, self._ages(owner)), due(max(theirs.interval, leave.interval), there))
            budget = left_of_minute(rules, self._recent.values())
            tenant = await self._tenant(deployment, owner, replica, leave, theirs)
            if tenant is None:
                continue
            if wait > 0 or not budget:
                later.append(wait or MINUTE)
                continue
            left = min(left, budget)
            crew = self._crew(owner)
            if crew.spare:
                spare[owner.key] = crew.spare
            tenants.append(tenant)
        limits = Limits(moves=min(MOST_MOVES, left), evictions=min(MOST_VICTIMS, left), spare=spare)
        return Offer(await self._looked_at(tenants), limits, min(later, default=0.0))

    async def _looked_at(self, tenants: list[Tenant]) -> tuple[Tenant, ...]:
        """Ask those that serve whether they answer somebody, those first that would go first."""
        replicas = self._world.replicas
        ordered = sorted(tenants, key=lambda one: (not one.evictable, one.priority, one.owner))
        serving = (there for one in ordered if not one.idle and (there := replicas.get(one.owner)) is not None)
        idle = await idle_among(serving)
        return tuple(replace(one, idle=True) if one.owner in idle else one for one in tenants)

    def _ages(self, owner: Deployment) -> list[float]:
        """Give how long ago a deployment was asked to leave, as far as that is known."""
        stored = (owner.status.get("lastDisruption") or {}).get("at")
        recent = [promise.since for _, promise, one in self._asked() if one.deployment == owner.key]
        recent += [
            each.since for each in self._recent.values() if any(one.deployment == owner.key for one in each.leaving)
        ]
        return [_age(one) for one in (*recent, *([stored] if stored else []))]

    def _crew(self, owner: Deployment) -> Crew:
        asked = {one.uid for _, _, one in self._asked()}
        there = (one for one in self._world.replicas.of(owner.key) if not one.deleting and one.uid not in asked)
        serving = {one.number for one in there if one.serving}
        most = owner.spec.disruption.max_unavailable if owner.spec is not None else 0
        return Crew(wanted_replicas(owner), len(serving), most)

    async def _tenant(
        self, deployment: Deployment, owner: Deployment, replica: Replica, leave: Leave, theirs: Leave
    ) -> Tenant | None:
        """Give what may be done with one replica; None when nothing may."""
        spec, record, mine = owner.spec, replica.record, deployment.spec
        if spec is None or mine is None or record is None or record.gpu is None or not spec.disruption.allowed:
            return None
        if replica.deleting or replica.failed or owner.deleting or replica.owner_uid != owner.uid:
            return None
        # One that does not serve would not elsewhere either, and nobody could tell when it has moved.
        movable = leave.moves and theirs.moves and replica.serving and spec.priority <= mine.priority
        evictable = leave.eviction and theirs.eviction and spec.priority < mine.priority
        evictable = evictable and (not replica.serving or self._crew(owner).spare > 0)
        if not movable and not evictable:
            return None
        return Tenant(
            owner=replica.key,
            device=record.gpu,
            need=record.need,
            deployment=owner.key,
            priority=spec.priority,
            idle=not replica.serving,
            since=record.since,
            movable=movable,
            evictable=evictable,
            request=await self._request(owner, replica) if movable else None,
        )

    async def _request(self, owner: Deployment, replica: Replica) -> Request | None:
        """Give what a running replica asks for elsewhere; None when its file cannot be found."""
        spec, record = owner.spec, replica.record
        source = parse_any(spec.model.source, self._settings.model_roots) if spec is not None else ""
        if spec is None or record is None or isinstance(source, str):
            return None
        found = await self._models.reach(owner, source, candidates_of(owner, self._world, self._ledger))
        if found.file_nodes is None and found.volume_nodes is None and found.summary is None and found.message:
            return None
        token = (owner.status.get("need") or {}).get("bytesPerToken") or 0
        sizes = (record.need, record.host_need, int(token))
        wanted = Wanted(replica.number, replacing=replica)
        request = request_with(owner, sizes, found, wanted, self._world, self._settings)
        return replace(request, allow_cpu=False, last=None)

    def _remember(self) -> None:
        """Bring what was disturbed within the last minute up to date."""
        for gpu, promise in self._ledger.disruptions():
            self._recent.setdefault((gpu, promise.since), promise)
        self._recent = {key: one for key, one in self._recent.items() if _age(one.since) < MINUTE}


def _age(moment: str) -> float:
    """Give the seconds since a time in RFC 3339; very many when it is none."""
    try:
        return max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return float("inf")
