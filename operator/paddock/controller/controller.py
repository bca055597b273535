"""The operator's heart: stores seeded by one list per kind, one work queue, and what each event puts into it.

Handlers call `Controller`; workers take keys from the queue. Everything is level-triggered: an event only says where to
look, and a slow resync by list heals whatever a watch lost.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from paddock.api.report import NodeReport
from paddock.api.vocabulary import Label
from paddock.controller import credentials
from paddock.controller.agents import Agents
from paddock.controller.beside import moved_between
from paddock.controller.capacity import Capacity
from paddock.controller.claims import Claims
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.events import Events
from paddock.controller.health import Health
from paddock.controller.ledger import Ledger
from paddock.controller.lent import Lent
from paddock.controller.listing import Listing
from paddock.controller.lists import Lists
from paddock.controller.memory import Tidy
from paddock.controller.models import Models
from paddock.controller.parts import Parts
from paddock.controller.policies import Policies
from paddock.controller.reconcile import Reconciler
from paddock.controller.services import OURS
from paddock.controller.settings import Settings
from paddock.controller.store import World, node_of
from paddock.controller.sweeps import ORPHAN_AGE, Sweeps
from paddock.controller.volumes import Volumes
from paddock.controller.workqueue import WorkQueue
from paddock.core import holding
from paddock.core.replica import Replica

log = logging.getLogger("paddock.controller")
Key = tuple[str, str]
DEPLOYMENT, RELEASE, NODE = "deployment", "release", "node"
BUSY_PAUSE = 0.3
"""Seconds until a deployment that has its pod is looked at again while others wait for theirs."""
POSITION_PAUSE = 1.0
"""Seconds between looks at who has another place in the queue."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds between tries to read everything at the start."""
FIRST_RESYNCS = (2.0, 8.0)
"""Seconds from the start to the first full comparison, and from that to the second."""
RESYNC_STEP = 5.0
"""Most seconds between two looks at what is due."""
POD_SELECTOR = (
    f"{Label.COMPONENT} in ({Label.NODE_AGENT},{Label.SERVER},{Label.INSPECT},{Label.FETCH},{holding.COMPONENT})"
)


class Controller:
    """One per process. kopf hands it around as its memo; a copy is the same object."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster, self.settings, self.world = cluster, settings, World()
        # kopf also watches the operator's own namespace, for the agents.
        self._lists = Lists(cluster, settings.watch_namespaces)
        self._listing = Listing(self, self._lists)
        self.queue: WorkQueue[Key] = WorkQueue()
        self.ledger = Ledger(cluster, settings, self._fleet_changed, self._reservations_lost)
        self.lent = Lent(cluster, settings, self.world, self.ledger, self.look_after)
        self.capacity = Capacity(cluster, settings, self.world, self.ledger)
        self.ledger.dress = lambda device: self.capacity.dress(self.lent.dress(device))
        self.claims = Claims(cluster, settings, self.world.offers, self.ledger.renew)
        self.policies = Policies(cluster, self.world.rules, self._fleet_changed)
        self.events = Events(cluster, settings.pod_name)
        self.volumes = Volumes(cluster, self.world.nodes)
        self._health = Health(cluster, self.ledger, self.world, settings, self.look_after, self._look_at_node)
        self._sweeps = Sweeps(cluster, settings, self.world, self.ledger, self.volumes)
        self._tasks: list[asyncio.Task[None]] = []
        self._reports: dict[str, NodeReport | str] = {}
        self._wake_pending = False
        self.started = time.monotonic()
        self.first_decision: float | None = None
        self.synced = 0.0
        self.reconciles = 0
        self.errors: dict[str, int] = {}
        self.agents: Agents
        self.models: Models
        self._reconciler: Reconciler

    def __copy__(self) -> "Controller":
        return self

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Seed the stores and start the workers, before any watch begins; tries until the API server answers."""
        delay = FIRST_PAUSE
        while not self.synced:
            try:
                await self._seed()
            except ClusterError as error:
                log.warning("cannot start yet: %s; again in %.0f s", error, delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_PAUSE)
        background = [self._resync, self._expect_agents, self._tell_positions]
        background.append(lambda: self.events.run(lambda: self.queue.idle))
        if self.capacity.at_work:
            background.append(self.capacity.run)
        if self.lent.holders.wanted:
            background.append(self.lent.holders.run)
        self._tasks += [asyncio.create_task(self._keep_up(one)) for one in background]
        log.info(
            "ready: %d deployments, %d pods, %d GPUs, %d nodes",
            len(self.world.deployments),
            len(self.world.replicas),
            len(self.ledger.stored()),
            len(self.world.nodes),
        )

    async def _seed(self) -> None:
        if not hasattr(self, "agents"):
            settings = self.settings
            trust = await self._secret()
            self.agents = Agents(trust, settings.agent_port, settings.agent_ttl, self._on_report, self._on_silent)
            self.agents.nodes_known = self.world.nodes
            self.models = Models(self.cluster, self.agents, settings)
            self.models.nodes = self.world.nodes
            self.models.remote.deployments = self.world.deployments
            more = (self.volumes, self.events, self._health, self.claims, self.lent, self._fleet_changed)
            parts = Parts(self.ledger, self.models, *more)
            self._reconciler = Reconciler(self.cluster, settings, self.world, parts, self.look_after, self.look_later)
        await self._listing.fleet()
        self._health.doubts.resume()
        await self._listing.pods()
        # From here on each deployment is looked at as soon as its page is read.
        self._tasks = self._tasks or [asyncio.create_task(self._work()) for _ in range(self.settings.workers)]
        await self._listing.deployments()
        self.synced = time.monotonic()

    async def _secret(self) -> credentials.Credentials:
        """Give what operator and agents trust each other by; a Secret that is not there is made."""
        return await credentials.ensure(self.cluster, self.settings.namespace, self.settings.agent_secret)

    async def _keep_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do background work until it ends; a mistake in it must not end it for good, and unseen."""
        while True:
            try:
                return await work()
            except Exception:
                self._note("Bug")
                log.exception("background work, begun again")
                await asyncio.sleep(POSITION_PAUSE)

    async def stop(self) -> None:
        """End all background work."""
        left = set(self._tasks)
        while left:
            for task in left:
                task.cancel()
            # Until Python 3.12 wait_for loses a cancellation that comes together with what it waits for.
            _, left = await asyncio.wait(left, timeout=0.5)
        if hasattr(self, "agents"):
            await self.agents.close()

    async def _list_all(self) -> None:
        """Read everything once. Pods before deployments, so that no deployment seems to lack a pod that exists."""
        await self._listing.fleet()
        await self._listing.pods()
        await self._listing.deployments()
        self.synced = time.monotonic()

    async def _miss_services(self) -> None:
        """Have Services made anew that somebody deleted: they are not watched."""
        services = self._reconciler.services
        made = services.made(self.world.deployments.values())
        for key in services.miss(await self._lists.names("services", "/api/v1", OURS), made):
            log.warning("%s: its Service is gone, and is made anew", key)
            self.queue.add((DEPLOYMENT, key))

    # -- events ---------------------------------------------------------------------------------------------------

    def deployment_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Note a change of a ModelDeployment."""
        meta = body["metadata"]
        if not self._lists.here(meta["namespace"]):
            return
        key = f"{meta['namespace']}/{meta['name']}"
        before = self.world.deployments.get(key)
        if self.world.deployments.apply(type_, body):
            after = self.world.deployments.get(key)
            if before is not None and after is not None and before.generation != after.generation:
                self._neighbour_changed()
            if type_ == "DELETED":
                self.events.forget(key)
                self.volumes.forget(meta["namespace"])
            self.queue.add((DEPLOYMENT, key))

    def pod_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Note a change of a pod: a server, an inspector or an agent."""
        labels = body["metadata"].get("labels") or {}
        match labels.get(Label.COMPONENT):
            case Label.NODE_AGENT:
                if body["metadata"]["namespace"] == self.settings.namespace:
                    self.agents.apply(type_, body)
            case holding.COMPONENT if body["metadata"]["namespace"] == self.settings.namespace:
                self.lent.holders.apply(type_, body)
            case Label.INSPECT | Label.FETCH if self._lists.here(body["metadata"]["namespace"]):
                self._inspector_event(type_, body)
            case Label.SERVER if self._lists.here(body["metadata"]["namespace"]):
                meta = body["metadata"]
                before = self.world.replicas.get(f"{meta['namespace']}/{meta['name']}")
                replica = self.world.replicas.apply(type_, body)
                if replica is not None:
                    if before is not None and before.serving != replica.serving:
                        self._neighbour_changed()
                    self._replica_event(type_, replica)
            case _:
                pass

    def _replica_event(self, type_: str | None, replica: Replica) -> None:
        if type_ == "DELETED":
            self.pod_gone(replica)
            return
        self.ledger.set_resident(replica.key, resident=replica.ready)
        self.queue.add((DEPLOYMENT, f"{replica.namespace}/{replica.deployment}"))

    def pod_gone(self, replica: Replica) -> None:
        """Note that a server's pod is gone."""
        meta = {"namespace": replica.namespace, "name": replica.name, "uid": replica.uid}
        labels = {Label.DEPLOYMENT: replica.deployment, Label.COMPONENT: Label.SERVER}
        self.world.replicas.apply("DELETED", {"metadata": {**meta, "labels": labels}})
        if replica.key not in self.world.replicas:
            since = replica.record.since if replica.record is not None else ""
            self.queue.add((RELEASE, f"{replica.key} {since}"))
            self._health.pod_gone(replica)
        self.queue.add((DEPLOYMENT, f"{replica.namespace}/{replica.deployment}"))

    def _inspector_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Have its deployment, and all others that wait, looked at: a header may have been read."""
        phase = (body.get("status") or {}).get("phase")
        if type_ == "DELETED" or phase in ("Succeeded", "Failed"):
            meta = body["metadata"]
            self.queue.add((DEPLOYMENT, f"{meta['namespace']}/{meta['labels'][Label.DEPLOYMENT]}"))
            self._fleet_changed()

    def gpu_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Note a change of a GPU object; one that somebody else changed is put right again."""
        name = body["metadata"]["name"]
        if type_ == "DELETED":
            self.ledger.forget(name, body["metadata"]["uid"])
            self.queue.add((NODE, (body.get("status") or {}).get("node", "")))
        else:
            self.ledger.apply(body)
            node = self.ledger.disturbed(name)
            status = self.ledger.status(name)
            if status is not None and status.node not in self.world.nodes and not status.reservations:
                node = status.node
            elif status is None and (made_for := dict(self.ledger.bare()).get(name)) not in self.world.nodes:
                node = made_for
            if node is not None:
                self.queue.add((NODE, node))

    def _reservations_lost(self, pods: frozenset[str]) -> None:
        """Have the deployments looked at whose pods somebody else took off a GPU object: `look` books them again."""
        for pod in pods:
            replica = self.world.replicas.get(pod)
            if replica is not None:
                self.queue.add((DEPLOYMENT, f"{replica.namespace}/{replica.deployment}"))

    def node_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Note a change of a Node; heartbeats that change nothing we look at wake nobody."""
        name, latest = body["metadata"]["name"], self.world.latest_nodes
        another = latest.is_another(name, body["metadata"]["uid"])
        if not latest.take(type_, name, body["metadata"]):
            return
        if type_ == "DELETED" or another:
            self._forget_node(name)
        if type_ == "DELETED":
            return
        node = node_of(body)
        before = self.world.nodes.get(name)
        self.world.nodes[name] = node
        self.world.gone_nodes.discard(name)
        if before is None and (report := self.agents.report(name)) is not None:
            self._reports[name] = report  # Its agent was quicker than the news of the node.
            self.queue.add((NODE, name))
        if before is not None and before.ready != node.ready:
            self.queue.add((NODE, name))
        if before is None or (before.shares, before.granules) != (node.shares, node.granules):
            self.ledger.renew(name)
        if before != node:
            self._fleet_changed()

    def _forget_node(self, name: str) -> None:
        self.world.nodes.pop(name, None)
        self.world.gone_nodes.add(name)
        self._reports.pop(name, None)
        self.agents.forget(name)
        self.models.forget_node(name)
        self.queue.add((NODE, name))

    def runtime_class_event(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Note that a RuntimeClass came or went: devices can be given to pods that could not be, or the reverse."""
        name, known = body["metadata"]["name"], self.world.runtime_classes
        if not self.world.latest_classes.take(type_, name, body["metadata"]):
            return
        self.world.handlers[name] = str(body.get("handler", ""))
        if (type_ != "DELETED") != (name in known):
            known ^= {name}
            self._fleet_changed()

    def _look_at_node(self, node: str) -> None:
        self.queue.add((NODE, node))

    def look_after(self, key: str, seconds: float) -> None:
        """Have a deployment looked at after some seconds."""
        if seconds <= 0:
            self.queue.add((DEPLOYMENT, key))
        else:
            self.queue.add_after((DEPLOYMENT, key), seconds)

    def look_later(self, key: str) -> bool:
        """Have a deployment looked at in a while if others wait now; tells whether so."""
        if self.queue.waiting:
            self.look_after(key, BUSY_PAUSE)
        return self.queue.waiting > 0

    def _fleet_changed(self) -> None:
        """Room may have appeared: look at all that wait, in their order, once for many changes in a row."""
        self.capacity.changed()
        if self._wake_pending or not self.world.waiting:
            return
        self._wake_pending = True
        asyncio.get_running_loop().call_later(0.05, self._wake_waiting)

    def _neighbour_changed(self) -> None:
        """One that runs may be asked to leave now that could not be before, where that is allowed at all."""
        if any(rule.disruption is not None for rule in self.world.rules.values()):
            self._fleet_changed()

    def _wake_waiting(self) -> None:
        self._wake_pending = False
        for key in self.world.waiting.in_order():
            self.queue.add((DEPLOYMENT, key))

    # -- agents ---------------------------------------------------------------------------------------------------

    async def _on_report(self, node: str, report: NodeReport) -> None:
        for key in moved_between(self._reports.get(node), report, self.world.deployments.values()):
            self.queue.add((DEPLOYMENT, key))
        self._reports[node] = report
        self._health.hear(node, report)
        self.lent.hear(node, report.given)
        self.queue.add((NODE, node))
        self.world.fleet_is_known |= bool(report.devices)
        if report.model_roots or report.cache is not None:
            self._fleet_changed()

    async def _on_silent(self, node: str, why: str) -> None:
        self._reports[node] = why
        self._health.hear(node, why)
        self.lent.hear(node, None)
        self.queue.add((NODE, node))

    async def _take_node(self, node: str) -> None:
        """Bring the GPU objects of a node to what its agents report."""
        listed = await self._health.take(node, self._reports.get(node))
        if listed is not None:
            self._find_unbooked(listed)

    def _find_unbooked(self, gpus: set[str]) -> None:
        """Have pods looked at that are on one of these GPUs and have no reservation there."""
        for one in self.world.replicas.values():
            gpu = one.record.gpu if one.record is not None else None
            if gpu in gpus and not self.ledger.booked(one.key, gpu):
                self.queue.add((DEPLOYMENT, f"{one.namespace}/{one.deployment}"))

    async def _expect_agents(self) -> None:
        """After a while, believe what there is: no device at all, and none on nodes whose agents have not answered.

        Only then has allowCPU its effect where no agent told of a device.
        """
        await asyncio.sleep(self.settings.agent_ttl)
        for node in {status.node for status in self.ledger.stored().values()} - self._reports.keys():
            await self._on_silent(node, "no agent has answered since the operator started")
        self.world.fleet_is_known = True
        self._fleet_changed()

    async def _tell_positions(self) -> None:
        """Have those looked at whose place in the queue has changed: others came before them, or went."""
        while True:
            await asyncio.sleep(POSITION_PAUSE)
            # While there is work, others may be about to come or go; after a start not all have been looked at.
            if self.queue.idle and self.models.settled:
                self.world.waiting.complete = True
                for key in self.world.waiting.misplaced():
                    self.queue.add((DEPLOYMENT, key))

    # -- workers --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._do(key)
            except ClusterError as error:
                delay = self.queue.retry(key)
                self._note(error.reason or str(error.status))
                log.warning("%s %s: %s; again in %.1f s", *key, error, delay)
            except Exception:
                self.queue.retry(key)
                self._note("Bug")
                log.exception("%s %s", *key)
            else:
                self.queue.forget(key)
            finally:
                self.queue.done(key)

    async def _do(self, key: Key) -> None:
        kind, name = key
        self.reconciles += 1
        match kind:
            case "release":
                await self._release(key)
            case "node":
                await self._take_node(name)
            case _:
                await self._reconciler.look(name)
                if self.world.deployments.get(name) is None:
                    await self._sweeps.left_by(name)
        if self.first_decision is None:
            self.first_decision = time.monotonic() - self.started
            log.info("first decision after %.2f s", self.first_decision)

    async def _release(self, key: Key) -> None:
        """Return what a pod had that is gone: what was booked for that very pod, not for one of the same name."""
        pod, _, since = key[1].partition(" ")
        if pod in self.world.making:
            self.queue.add_after(key, 0.2)
        elif pod not in self.world.replicas:
            await self.ledger.release(pod, since=since or None)

    def _note(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1

    # -- resync ---------------------------------------------------------------------------------------------------

    async def _resync(self) -> None:
        """Heal what watches lost, and take back what crashes left; gently, and for ever."""
        # As the leader nobody else is between booking and making a pod now: what an earlier one left is known as such.
        age = 0.0 if self.settings.leader_election else ORPHAN_AGE
        # The first times soon: between our own lists and those of the watches something may have gone.
        waits = [*FIRST_RESYNCS]
        limit, tidy = waits.pop(0), Tidy()
        while True:
            if await self._healed(self._sweeps.orphans(age)):
                age = ORPHAN_AGE
            for key in self._sweeps.forsaken():
                self.queue.add((DEPLOYMENT, key))
            if self.world.waiting:  # Perhaps for what a driver has begun to offer meanwhile.
                await self._healed(self.claims.refresh())
            if time.monotonic() - self.synced > limit and await self._healed(self._list_all()):
                for step in (self._trust(), self._sweeps.volumes(), self._miss_services()):
                    await self._healed(step)
                bare = {node for _, node in self.ledger.bare()}
                for node in bare | {status.node for status in self.ledger.stored().values()}:
                    self.queue.add((NODE, node))
                limit = waits.pop(0) if waits else self.settings.resync_seconds
                tidy.lists_were_read()
            if self.queue.idle:
                tidy.look(self.reconciles)
            await asyncio.sleep(min(limit, RESYNC_STEP))

    async def _trust(self) -> None:
        await self.agents.trust(await self._secret())

    async def _healed(self, step: Awaitable[None]) -> bool:
        """Do one step, and tell whether it was done: what fails, perhaps for ever, keeps nobody from the others."""
        try:
            await step
        except ClusterError as error:
            log.warning("resync: %s", error)
            return False
        except Exception:
            self._note("Bug")
            log.exception("resync")
            return False
        return True
