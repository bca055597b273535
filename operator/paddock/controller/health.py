"""From a node's reports to its GPU objects: what is there, what is wrong with it, and who else uses it."""

import logging
from collections.abc import Callable, Collection

from paddock.api.gpu import GPUStatus
from paddock.api.report import NodeReport
from paddock.api.vocabulary import Reason
from paddock.controller.clock import now
from paddock.controller.cluster import Cluster
from paddock.controller.doubts import Doubts
from paddock.controller.ledger import Ledger
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.controller.witnesses import Witnesses
from paddock.core.health import dress, ready_of, trouble_of
from paddock.core.inventory import faults_in_words, not_ready, observe, vanished
from paddock.core.replica import Replica
from paddock.core.status import Finding

log = logging.getLogger("paddock.health")


class Health:
    """Brings the GPU objects of a node to what is known of it."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        world: World,
        settings: Settings,
        look_at: Callable[[str, float], None],
        look_at_node: Callable[[str], None],
    ) -> None:
        """Call `look_at` with deployments (namespace/name) that should be looked at, after some seconds."""
        self._cluster = cluster
        self._ledger, self._world, self._look_at, self._look_at_node = ledger, world, look_at, look_at_node
        self.witnesses = Witnesses(world.replicas)
        self.doubts = Doubts(ledger, settings.quarantine_seconds, look_at, self._look_at_gpu)

    def _look_at_gpu(self, name: str) -> None:
        status = self._ledger.stored().get(name)
        if status is not None:
            self._look_at_node(status.node)

    def hear(self, node: str, report: NodeReport | str | None) -> None:
        """Take over what an agent sees of processes, or that it is silent."""
        for deployment in self.witnesses.take(node, report if isinstance(report, NodeReport) else None):
            self._look_at(deployment, 0.0)

    def pod_gone(self, replica: Replica) -> None:
        """Have what a pod's process may still have counted as foreign from now on."""
        if replica.node is not None and self.witnesses.sees(replica.node):
            self._look_at_node(replica.node)

    def seen(self, deployment: str) -> tuple[Finding | None, dict[str, int]]:
        """Give what was found of a deployment's last server, and what drivers show of those that run, by pod."""
        every = ((one.key, self.witnesses.bytes_of(one)) for one in self._world.replicas.of(deployment))
        return self.doubts.finding(deployment), {key: size for key, size in every if size is not None}

    async def take(self, node: str, report: NodeReport | str | None) -> set[str] | None:
        """Write the node's GPU objects; gives the names of those that the report lists, None without a report."""
        stored = {name: status for name, status in self._ledger.stored().items() if status.node == node}
        known = self._world.nodes.get(node)
        if known is None:
            # News of a GPU may be quicker than that of its node: one that was never known is asked for.
            if node in self._world.gone_nodes or await self._cluster.is_gone("/api/v1/nodes", node):
                await self._take_gone(node)
            return None
        if not known.ready:
            await self._all(stored, Reason.NODE_NOT_READY, "Kubernetes says that its node is not Ready")
            return None
        if isinstance(report, str):
            await self._all(stored, Reason.AGENT_SILENT, report)
            return None
        if report is None:
            return None
        return await self._take_report(node, report, stored)

    async def _take_gone(self, node: str) -> None:
        for name in [name for name, status in self._ledger.stored().items() if status.node == node]:
            status = self._ledger.status(name)
            if node in self._world.nodes:
                return  # It has come back meanwhile: what its owner says of its devices stays.
            if status is None:
                continue
            if not status.reservations:
                log.info("GPU %s removed: its node is gone", name)
                await self._ledger.delete(name)
            else:
                await self._write(name, not_ready(status, Reason.NODE_GONE, "its node is gone", now()))
        if node not in self._world.nodes:
            await self._remove_bare(node, ())

    async def _remove_bare(self, node: str, kept: Collection[str]) -> None:
        """Remove what was made for a device that went before anything was written of it."""
        for name in [name for name, made_for in self._ledger.bare() if made_for == node and name not in kept]:
            log.info("GPU %s removed: nothing is known of it", name)
            await self._ledger.delete(name)

    async def _all(self, stored: dict[str, GPUStatus], reason: Reason, message: str) -> None:
        for name, status in stored.items():
            await self._write(name, not_ready(status, reason, message, now()))

    async def _take_report(self, node: str, report: NodeReport, stored: dict[str, GPUStatus]) -> set[str]:
        self._ledger.set_shown(self.witnesses.shown(node))
        places = self.witnesses.places(node)
        observed = {name: dress(status, report, places, now()) for name, status in observe(node, report, now()).items()}
        self._begin_anew(node, stored, observed, report)
        for name, status in observed.items():
            await self._write(name, status)
        for name in vanished(stored, observed, node):
            words = faults_in_words(report)
            reason, message = trouble_of(stored[name].pci_id, report) or (
                (Reason.LISTING_FAILED, words)
                if words
                else (Reason.NOT_LISTED, "the node's agent does not list it any more")
            )
            await self._write(name, not_ready(stored[name], reason, message, now()))
        await self._remove_bare(node, observed)
        return set(observed)

    def _begin_anew(
        self, node: str, stored: dict[str, GPUStatus], observed: dict[str, GPUStatus], report: NodeReport
    ) -> None:
        """Forget doubts that a boot or another driver may have ended."""
        booted = {one.boot_id for one in stored.values() if one.boot_id} - {report.boot_id}
        drivers = {name: stored[name].driver for name in observed.keys() & stored.keys()}
        changed = {name for name, driver in drivers.items() if driver and driver != observed[name].driver}
        if booted and report.boot_id:
            log.info("node %s was booted", node)
            changed = set(stored)
        self.doubts.begin_anew(changed)

    async def _write(self, name: str, status: GPUStatus) -> None:
        before = self._ledger.stored().get(name)
        was, is_ = ready_of(before) if before is not None else None, ready_of(status)
        await self._ledger.observe(name, status)
        if was is not None and is_ is not None and was.reason != is_.reason and before is not None:
            for one in before.reservations:
                self._look_at(one.deployment, 0.0)
