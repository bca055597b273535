"""Observe, plan, apply: one look at one deployment.

`look` reads the stores, has the pure core decide, and does what it says: at most one status write, and none without a
change. It may raise ClusterError, which the worker turns into a retry; all else that can go wrong is a value that
becomes a condition.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from paddock.api.vocabulary import Reason
from paddock.controller.clock import now
from paddock.controller.cluster import Cluster, ClusterError, deployment_path, namespaced
from paddock.controller.contexts import Settled, scene_of, settle, with_hint
from paddock.controller.decisions import (
    Accepted,
    accepted_of,
    binding_of,
    candidates_of,
    host_bytes_of,
    record_of,
    request_for,
    reservation_of,
    spec_refusal,
)
from paddock.controller.fetching import Fetching
from paddock.controller.ledger import ConflictError
from paddock.controller.moves import Moves
from paddock.controller.parts import Parts
from paddock.controller.pauses import Pauses
from paddock.controller.proof import Prover
from paddock.controller.records import Records
from paddock.controller.services import Services
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.binding import Binding
from paddock.core.context import choice_of
from paddock.core.deployment import Deployment, placement_hash, revision
from paddock.core.filters import allows
from paddock.core.fleet import Fleet
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.plan import Plan, Removal, Wanted, plan
from paddock.core.pod import PodSettings, pod_name, server_pod
from paddock.core.queue import kept_for, several
from paddock.core.replica import Record, Replica, replica_of
from paddock.core.request import Request
from paddock.core.rules import priority_problem, rules_for
from paddock.core.status import Finding, Outcome, changes, status_of

if TYPE_CHECKING:
    from paddock.api.modeldeployment import Need

log = logging.getLogger("paddock.reconcile")
FLEET_CAN_HELP = (
    Reason.NO_NODE_AGENT,
    Reason.MODEL_NOT_FOUND,
    Reason.INSPECTION_FAILED,
    Reason.READING_HEADER,
    Reason.PRIORITY_REFUSED,
)
"""What a change of the fleet or of its policies may end. An inspector pod that ends is such a change too: it may have
read the file for several deployments."""
LONGEST_PUT_OFF = 2.0
"""Seconds by which Service and first status may be put off while other deployments wait for their pods."""


class Reconciler:
    """Brings deployments to what their specs ask for."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        world: World,
        parts: Parts,
        look_again: Callable[[str, float], None],
        look_later: Callable[[str], bool],
    ) -> None:
        self._cluster, self._settings, self._world = cluster, settings, world
        self._ledger, self._models, self._events = parts.ledger, parts.models, parts.events
        self._look_again, self._look_later, self._changed = look_again, look_later, parts.changed
        self.services = Services(cluster, look_again)
        self._put_off: dict[str, tuple[Need, float]] = {}
        """Deployments whose pods are made before Service and status: the need, and until when these may wait."""
        self._pauses = Pauses()
        self._records = Records(cluster, world, parts, look_again)
        self._moves = Moves(settings, world, parts, look_again)
        self._fetching = Fetching(cluster, settings, world, parts, look_again)
        self._claims, self._holders = parts.claims, parts.lent.holders
        self._health, self._doubts = parts.health, parts.health.doubts
        self._prover = Prover(cluster, world.replicas, parts, look_again)

    async def look(self, key: str) -> None:
        """Take one look at a deployment and do the next steps."""
        deployment = self._world.deployments.get(key)
        if deployment is None or deployment.deleting:
            await self._moves.tidy(key, None)
            self._leave_queue(key)
            self.services.forget(key)
            self._pauses.forget(key)
            self._fetching.forget(key)
            self._doubts.forget(key)
            self._put_off.pop(key, None)
            return
        if key in self._put_off and self._put_off[key][1] > asyncio.get_running_loop().time() and self._look_later(key):
            return
        self._pauses.see(self._world.replicas.of(key))
        await self._records.restore(deployment)
        if await self._prover.prove(deployment):
            return
        steps = self._plan(deployment)
        await self._moves.tidy(key, deployment, {self._pod_key(deployment, one) for one in steps.wanted})
        await self._remove(deployment, steps.removals)
        before = len(self._world.replicas.of(key))
        accepted, unplaced = await self._advance(deployment, steps)
        if isinstance(accepted, Accepted) and len(self._world.replicas.of(key)) > before:
            until = asyncio.get_running_loop().time() + LONGEST_PUT_OFF
            self._put_off[key] = (accepted.told(self._world.replicas.of(key)), until)
            if not self._look_later(key):
                self._look_again(key, 0.0)
            return
        if isinstance(accepted, Finding) and self._world.waiting.keep_only(key, set()):
            self._changed()
        (self._world.waiting.add if self._waits(accepted, unplaced) else self._leave_queue)(key)
        await self._fetching.prefetch(deployment)
        made = isinstance(accepted, Accepted) or key in self._put_off
        try:
            if made or (steps.current and self.services.is_due(deployment)):
                accepted = await self.services.ensure(deployment) or accepted
        finally:
            await self._report(deployment, accepted, unplaced)

    def _leave_queue(self, key: str) -> None:
        """Drop a deployment from those that wait. What was kept for it without being taken is for those behind."""
        if self._world.waiting.forget(key):
            self._changed()

    async def _advance(self, deployment: Deployment, steps: Plan) -> tuple[Accepted | Finding | None, Finding | None]:
        """Make the pods that are wanted; gives what is known of the spec, and why a replica has no device."""
        if not steps.wanted:
            refusal = spec_refusal(deployment, self._settings)
            return (refusal if isinstance(refusal, Finding) else None), None
        accepted = await self._accept(deployment, steps)
        if isinstance(accepted, Finding):
            return accepted, None
        await self._claims.refresh()
        accepted, unplaced = await self._fill(deployment, steps, accepted)
        taken = unplaced is not None and unplaced.reason is Reason.SERVICE_NAME_TAKEN
        return (unplaced, None) if taken else (accepted, unplaced)

    def _waits(self, accepted: Accepted | Finding | None, unplaced: Finding | None) -> bool:
        """Tell whether a change of the fleet can help: room, a device, an agent that answers, a node with the file."""
        if isinstance(accepted, Finding):
            return accepted.reason in FLEET_CAN_HELP
        # A refused pod has booked and returned its memory, which is a change of the fleet: it has a pause of its own.
        return unplaced is not None and unplaced.reason is not Reason.POD_REFUSED

    def _plan(self, deployment: Deployment) -> Plan:
        replicas = self._world.replicas.of(deployment.key)
        steps = plan(
            deployment,
            replicas,
            lambda one: self._satisfies(deployment, one),
            self._is_lost,
            self._moves.departure,
        )
        return self._holders.replace(self._doubts.replace(steps))

    def _is_lost(self, replica: Replica) -> bool:
        """Tell whether a pod is on a node that does not answer."""
        node = self._world.nodes.get(replica.node or "")
        return replica.node is not None and (node is None or not node.ready)

    def _satisfies(self, deployment: Deployment, replica: Replica) -> bool:
        """Tell whether a pod's device and node are allowed by the present spec."""
        spec, record = deployment.spec, replica.record
        if spec is None or record is None:
            return False
        device = self._ledger.fleet(self._world.nodes).device(record.gpu) if record.gpu is not None else None
        if record.gpu is not None and device is None:
            return not spec.placement.devices
        return allows(spec.placement, device, self._world.nodes.get(record.node or ""))

    # -- is the spec all right? -----------------------------------------------------------------------------------

    async def _accept(self, deployment: Deployment, steps: Plan) -> Accepted | Finding:
        source = spec_refusal(deployment, self._settings)
        if isinstance(source, Finding):
            return source
        spec = deployment.spec
        assert spec is not None  # noqa: S101 spec_refusal has looked
        if self.services.was_taken(deployment.key) and (problem := await self.services.problem(deployment)):
            return problem
        rules = rules_for(deployment.namespace, self._world.rules.values())
        if too_high := priority_problem(spec.priority, rules):
            return Finding("False", Reason.PRIORITY_REFUSED, too_high)
        if not self._models.settled:
            self._look_again(deployment.key, 0.1)
            return Finding("Unknown", Reason.READING_HEADER, "waiting for the first answers of the node agents")
        found = await self._models.find(deployment, source, candidates_of(deployment, self._world, self._ledger))
        if found.retry_after is not None:
            self._look_again(deployment.key, found.retry_after)
        if found.summary is None:
            unknown = found.reason in (Reason.READING_HEADER, Reason.NO_NODE_AGENT)
            return Finding("Unknown" if unknown else "False", found.reason, found.message)
        self._fetching.note(deployment, found)
        choice = choice_of(deployment, steps.current)
        backends = self._ledger.fleet(self._world.nodes).backends
        return accepted_of(source, found, spec, choice.length if choice is not None else None, backends)

    # -- devices and pods -----------------------------------------------------------------------------------------

    async def _fill(self, deployment: Deployment, steps: Plan, accepted: Accepted) -> tuple[Accepted, Finding | None]:
        """Give each wanted replica a device and a pod; the first refusal is the one that is told.

        Gives what is accepted with the context that the first of them got.
        """
        leaving = {one.name for one in steps.leaving} | {one.replica.name for one in steps.removals}
        refused: Finding | None = None
        placed = False
        pods = {one.number: self._pod_key(deployment, one) for one in steps.wanted}
        self._world.waiting.keep_only(deployment.key, set(pods.values()))
        for wanted in steps.wanted:
            pod = pods[wanted.number]
            name = pod.partition("/")[2]
            if name in leaving:
                continue
            if not self._world.deployments.is_current(deployment):
                refused = refused or Finding("Unknown", Reason.ROLLING_OUT, "the spec has changed meanwhile")
                break
            if left := self._pauses.left(pod):
                self._world.waiting.drop(deployment.key, pod)
                self._look_again(deployment.key, left)
                refused = refused or self._pauses.finding(pod)
                continue
            if wanted.replaces_a_server and placed:
                break  # Two would be missing at once, if this old pod had to make room.
            finding = await self._start(deployment, wanted, accepted, steps)
            placed = placed or finding is None
            refused = refused or finding
            made = self._world.replicas.get(pod) if accepted.open else None
            if made is not None and made.record is not None:
                accepted = accepted.at(made.record.context)
        return accepted, refused

    def _pod_key(self, deployment: Deployment, wanted: Wanted) -> str:
        return f"{deployment.namespace}/{pod_name(deployment, revision(deployment), wanted.number, wanted.attempt)}"

    async def _start(self, deployment: Deployment, wanted: Wanted, accepted: Accepted, steps: Plan) -> Finding | None:
        key = self._pod_key(deployment, wanted)
        request = request_for(deployment, accepted, wanted, self._world, self._settings)
        for _ in range(8):
            fleet, decision = self._ask(deployment, key, request)
            if isinstance(decision, Unplaceable):
                refusal = with_hint(decision, accepted, deployment.name)
                finding = await self._make_room(deployment, wanted, request, fleet, refusal, steps)
                return await self._with_moves(deployment, wanted, key, request, finding)
            if accepted.open:
                settled = await self._settle(deployment, wanted, accepted, (fleet, decision), steps)
                if isinstance(settled, Finding):
                    return settled
                accepted, decision = settled.accepted, settled.decision
            if (asked := await self._holders.wait_for(decision.device)) is not None:
                return replace(asked, position=self._world.waiting.enqueue(deployment, key, request))
            binding = binding_of(deployment, decision, key.partition("/")[2], self._world, self._settings)
            if isinstance(binding, Finding):
                return binding
            record = record_of(deployment, accepted, decision, binding, self._world, self._settings)
            if isinstance(record, Finding):
                return record
            self._world.waiting.drop(deployment.key, key)
            if record.gpu is not None:
                self._ledger.assume(record.gpu, reservation_of(deployment, key, record))
            self._world.making.add(key)
            try:
                return await self._create(deployment, wanted, accepted, record, binding)
            except ConflictError:
                continue
            finally:
                self._world.making.discard(key)
        return Finding("False", Reason.WAITING_FOR_DEVICE, "the fleet keeps changing; trying again")

    async def _with_moves(
        self, deployment: Deployment, wanted: Wanted, pod: str, request: Request, finding: Finding
    ) -> Finding:
        """Have others make room for a replica that waits, as far as policies let it, and queue it up."""
        if finding.reason in (Reason.WAITING_FOR_DEVICE, Reason.NO_DEVICE):
            finding = await self._moved(deployment, wanted, pod, request, finding)
            return replace(finding, position=self._world.waiting.enqueue(deployment, pod, request))
        return finding

    async def _moved(
        self, deployment: Deployment, wanted: Wanted, pod: str, request: Request, finding: Finding
    ) -> Finding:
        old = wanted.replacing
        if old is not None:
            if self._moves.departure(old) is not None:
                await self._moves.give_up(old, finding.message)
            return finding
        if finding.reason is not Reason.WAITING_FOR_DEVICE:
            return finding
        found = await self._moves.make_room(deployment, pod, request, lambda: self._ask(deployment, pod, request))
        return finding if found is None else replace(found, shortage=finding.shortage)

    def _ask(self, deployment: Deployment, pod: str, request: Request) -> tuple[Fleet, Placement | Unplaceable]:
        """Ask for a device beside what those ahead in the queue will take; gives the fleet that was asked, too."""
        ahead = self._world.waiting.ahead_of(deployment)
        beside = self._doubts.fleet(deployment.key, self._ledger.fleet(self._world.nodes))
        real = beside.without(self._moves.kept_behind(deployment))
        kept, names_ = kept_for(ahead, real, self._ledger.promised)
        fleet = kept.without((pod,))
        decision = place(request, fleet)
        if names_ and isinstance(decision, Unplaceable) and isinstance(place(request, real.without((pod,))), Placement):
            decision = replace(decision, message=f"{several(names_)} ahead in the queue; {decision.message}")
        return fleet, self._holders.rather_held(request, fleet, decision)

    async def _settle(
        self, deployment: Deployment, wanted: Wanted, accepted: Accepted, asked: tuple[Fleet, Placement], steps: Plan
    ) -> Settled | Finding:
        """Choose the context; a Finding while pods have to go first whose room it takes."""
        fleet, decision = asked
        scene = scene_of(deployment, self._pod_key(deployment, wanted), wanted, steps, self._is_lost)

        def ask(one: Accepted) -> Request:
            return request_for(deployment, one, wanted, self._world, self._settings)

        settled = settle(accepted, decision, fleet, scene, ask)
        if settled.beside:
            return settled
        if scene.replaced is not None and not scene.ending:
            await self._remove(deployment, (Removal(scene.replaced, "its successor's context needs the room"),))
        leaving = ", ".join(one.name for one in scene.going)
        return Finding("False", Reason.ROLLING_OUT, f"{leaving} makes room: {settled.decision.reason}")

    async def _make_room(
        self,
        deployment: Deployment,
        wanted: Wanted,
        request: Request,
        fleet: Fleet,
        refusal: Unplaceable,
        steps: Plan,
    ) -> Finding:
        """Nothing fits beside the old replica: end it first, but only if its room is then enough."""
        shortage = refusal.nearest.shortage if refusal.nearest is not None else None
        finding = Finding("False", refusal.reason, refusal.message, shortage)
        old = wanted.replacing
        if old is None or steps.leaving or steps.removals:
            return finding
        if isinstance(place(request, fleet.without((old.key,))), Unplaceable):
            return finding
        await self._remove(deployment, (Removal(old, "its successor needs the room"),))
        return Finding("False", Reason.ROLLING_OUT, f"{old.name} makes room: {refusal.message}")

    async def _create(
        self, deployment: Deployment, wanted: Wanted, accepted: Accepted, record: Record, binding: Binding
    ) -> Finding | None:
        """Book, then make the pod. Gives a finding when the API server refuses the pod."""
        mounted = self._fetching.mounted(accepted, record)
        settings = PodSettings(
            revision=revision(deployment),
            placement_hash=placement_hash(deployment),
            pull_policy=self._settings.image_pull_policy,
            user=self._settings.server_user,
            host_bytes=host_bytes_of(accepted, record, self._ledger.fleet(self._world.nodes)),
            attempt=wanted.attempt,
        )
        pod = server_pod(deployment, wanted.number, record, binding, mounted, settings)
        key = f"{deployment.namespace}/{pod['metadata']['name']}"
        if (problem := await self._book(deployment, record, key)) is not None:
            return problem
        try:
            pod = await self._fetching.equip(pod, deployment, accepted, record)
            body = await self._cluster.post(namespaced("pods", deployment.namespace), pod)
        except ClusterError as error:
            return await self._not_created(deployment, key, error)
        self._world.replicas.apply("ADDED", body)
        # What an earlier attempt booked elsewhere; not before the pod exists: another operator may be about to make it.
        await self._ledger.release(key, keep=record.gpu)
        await self._ledger.withdraw(key)
        log.info("%s: %s", key, record.reason)
        self._events.normal(deployment, Reason.PLACED, record.reason)
        if wanted.replacing is not None and (departure := self._moves.departure(wanted.replacing)) is not None:
            self._events.normal(deployment, Reason.MOVING, f"{wanted.replacing.name} moves: {departure.why}")
        await self._claims.ensure(replica_of(body))
        return None

    async def _book(self, deployment: Deployment, record: Record, key: str) -> Finding | None:
        """Write the reservation, and meanwhile ask whether the Service's name is free; a Finding when it is taken."""
        asked = asyncio.create_task(self.services.problem(deployment))
        try:
            if record.gpu is not None:
                await self._ledger.commit(record.gpu, key)
        finally:
            await asyncio.wait((asked,))
        problem = asked.result()
        if problem is not None:
            await self._ledger.release(key)
        return problem

    async def _not_created(self, deployment: Deployment, key: str, error: ClusterError) -> Finding | None:
        there = namespaced("pods", deployment.namespace), key.partition("/")[2]
        if error.already_exists or (error.failed and not await self._cluster.is_gone(*there)):
            await self._adopt(deployment, key)
            return None
        if not error.failed and not error.refused and not error.not_found:
            # Nobody knows whether the pod exists: the reservation stays until the next attempt, or the orphans' sweep.
            raise error
        await self._ledger.release(key)
        if error.not_found:
            raise error
        finding = Finding("False", Reason.POD_REFUSED, error.message)
        (self._pauses.failed if error.failed else self._pauses.refused)(key, finding)
        self._look_again(deployment.key, self._pauses.left(key))
        self._events.warning(deployment, finding.reason, finding.message)
        return finding

    async def _adopt(self, deployment: Deployment, key: str) -> None:
        """Take over the pod that has the name already: of another operator, or of a deployment that was here before."""
        namespace, _, name = key.partition("/")
        try:
            body = await self._cluster.get(namespaced("pods", namespace, name))
        except ClusterError as error:
            if error.not_found:
                await self._ledger.release(key)
            raise
        self._world.replicas.apply("ADDED", body)
        there = self._world.replicas.get(key)
        record = there.record if there is not None else None
        if record is not None and record.gpu is not None:
            await self._ledger.rebook(record.gpu, reservation_of(deployment, key, record))
        await self._ledger.release(key, keep=record.gpu if record is not None else None)
        self._look_again(deployment.key, 1.0)

    async def _remove(self, deployment: Deployment, removals: tuple[Removal, ...]) -> None:
        for removal in removals:
            one = removal.replica
            log.info("%s: removed, since %s", one.key, removal.why)
            if one.unverified:
                self._pauses.failed(one.key)
                self._doubts.note(one)
            if one.failed:
                lasting = one.waiting if one.fetch_failed else None
                self._pauses.failed(one.key, Finding("False", lasting, removal.why) if lasting is not None else None)
                self._fetching.doubt(one)
                self._events.warning(deployment, one.waiting or Reason.SERVER_FAILED, f"{one.name}: {removal.why}")
            elif one.spoiled:
                self._pauses.failed(one.key)
                self._events.warning(deployment, Reason.RECORD_CHANGED, f"{one.name} is replaced: {removal.why}")
            elif self._moves.departure(one) is not None:
                self._events.warning(deployment, Reason.DISPLACED, f"{one.name} is ended: {removal.why}")
            await self._cluster.delete(namespaced("pods", one.namespace, one.name), one.uid)

    # -- status -----------------------------------------------------------------------------------------------------

    async def _report(
        self, deployment: Deployment, accepted: Accepted | Finding | None, unplaced: Finding | None
    ) -> None:
        """Write the status, once and only if it differs."""
        latest = self._world.deployments.get(deployment.key)
        if latest is None or latest.uid != deployment.uid or latest.generation != deployment.generation:
            return
        if isinstance(accepted, Finding):
            finding, need_ = accepted, None
        else:
            need_ = accepted.told(self._world.replicas.of(latest.key)) if accepted is not None else None
            need_ = self._put_off.pop(deployment.key, (need_, 0.0))[0] if need_ is None else need_
            read = need_ is not None or "need" in latest.status
            text = "the spec is valid and the model's header was read" if read else "the spec is valid"
            finding = Finding("True", Reason.VALID, text)
        last = self._moves.last(latest)  # Before the plan: who is told that a pod leaves must see it leaving there.
        steps = await self._prover.with_crashes(self._plan(latest))
        steps = await self._fetching.with_progress(latest, steps)
        model = self._fetching.status(latest, steps)
        doubt, observed = self._health.seen(latest.key)
        context = choice_of(latest, steps.current)
        outcome = Outcome(finding, steps, unplaced, need_, model, context, doubt, observed, last)
        status = status_of(latest, outcome, now()).to_dict()
        if status == latest.status:
            return
        patch = changes(status, latest.status)
        path = deployment_path(latest.namespace, latest.name) + "/status"
        try:
            body = await self._cluster.patch(path, {"status": patch})
        except ClusterError as error:
            if not error.not_found:
                raise
            return
        self._world.deployments.apply("MODIFIED", body)
        if body["metadata"].get("generation") != latest.generation:
            # The answer already holds a change whose event will look old; nobody else would tell of it.
            self._look_again(latest.key, 0.0)
