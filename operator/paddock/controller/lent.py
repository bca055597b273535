"""Cards that the device plugin of their vendor gives to pods: which are such, and which one a pod was given.

A server asks for one itself, or shares one that a holder pod has (`holders`).

The kubelet picks the card. The agent hears which from the kubelet; the reservation moves there, and the pod's record is
written anew, before anything is proven.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from paddock.api.report import GivenDevices
from paddock.api.vocabulary import Annotation, Reason
from paddock.controller.cluster import Cluster, ClusterError, namespaced
from paddock.controller.decisions import reservation_of
from paddock.controller.holders import Holders
from paddock.controller.ledger import Ledger
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.binding import lender
from paddock.core.deployment import Deployment
from paddock.core.dra import offered
from paddock.core.evidence import Evidence
from paddock.core.fleet import Device
from paddock.core.replica import Record, Replica

log = logging.getLogger("paddock.lent")


class Lent:
    """Learns which card a pod was given."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        world: World,
        ledger: Ledger,
        look_at: Callable[[str, float], None],
    ) -> None:
        """Call `look_at` with deployments (namespace/name) of which something new is known, after some seconds."""
        self._cluster, self._world, self._ledger, self._look_at = cluster, world, ledger, look_at
        self._given: dict[str, Mapping[str, GivenDevices]] = {}
        """What pods (namespace/name) were given, by node; only of nodes whose kubelet tells."""
        self.holders = Holders(cluster, settings, world, ledger, self._given, look_at)

    def dress(self, device: Device) -> Device:
        """Give a device with what else than itself decides how pods get it: drivers, and the plugin of its vendor."""
        offer = offered(device.uuid, device.pci_id, self._world.offers.get(device.node, ()))
        told = device.node in self._given
        given = self.holders.are_on(device.node) or self.holders.who_has(device) is not None
        lent = lender(device, self._world.nodes.get(device.node), given=given) if told else None
        if offer is None and lent is None:
            return device
        known = replace(device, offer=offer, lent=lent)
        return replace(known, holding=self.holders.holding(known, lent))

    def hear(self, node: str, given: list[GivenDevices] | None) -> None:
        """Take over what a kubelet tells; None: nothing."""
        before = self._given.get(node)
        if given is None:
            self._given.pop(node, None)
        else:
            self._given[node] = _by_pod(given)
        if before != self._given.get(node):
            self._ledger.renew(node)
        for pod, one in self._given.get(node, {}).items():
            known = self._world.replicas.get(pod)
            if known is not None and (before or {}).get(pod) != one:
                self._look_at(f"{known.namespace}/{known.deployment}", 0.0)

    async def look(self, deployment: Deployment, one: Replica) -> Evidence | None:
        """Learn which card a pod was given; gives what is awaited, None once that is known."""
        record = one.record
        if record is None or record.exact_device is not False or record.learned or one.deleting or not one.scheduled:
            return None
        given = self._given.get(record.node or "", {}).get(one.key)
        if given is None:
            return Evidence(False, Reason.AWAITING_EVIDENCE, "the kubelet has not told which card it was given")
        gpu = self._gpu_of(record, given)
        if gpu is None:
            told = ", ".join(given.devices)
            return Evidence(False, Reason.NO_EVIDENCE, f"it was given {told}, which is no card that is listed")
        await self._write(deployment, one, record, gpu)
        return Evidence(False, Reason.AWAITING_EVIDENCE, f"the kubelet has told that it was given {gpu}")

    def _gpu_of(self, record: Record, given: GivenDevices) -> str | None:
        if len(given.devices) != 1:
            return None
        # Where a plugin shares cards between pods it puts a number behind the name: such a one is nobody's alone.
        name = given.devices[0].lower()
        for gpu, status in self._ledger.stored().items():
            if status.node == record.node and name in ((status.uuid or "").lower(), (status.pci_id or "").lower()):
                return gpu
        return None

    async def _write(self, deployment: Deployment, one: Replica, record: Record, gpu: str) -> None:
        """Move the reservation and write the record anew; in this order, so that the card is never free between."""
        status = self._ledger.stored()[gpu]
        learned = replace(
            record,
            gpu=gpu,
            uuid=status.uuid,
            pci_id=status.pci_id,
            name=status.name,
            description=status.description,
            learned=True,
        )
        if gpu != record.gpu:
            log.info("%s was given %s, not %s", one.key, gpu, record.gpu)
            await self._ledger.rebook(gpu, reservation_of(deployment, one.key, learned))
        body = {"metadata": {"annotations": {Annotation.PLACEMENT: learned.dumps()}, "uid": one.uid}}
        try:
            pod = await self._cluster.patch(namespaced("pods", one.namespace, one.name), body)
        except ClusterError as error:
            if not error.not_found:
                raise
            return
        self._world.replicas.apply("MODIFIED", pod)
        await self._ledger.release(one.key, keep=gpu)
        self._look_at(deployment.key, 0.0)


def _by_pod(given: list[GivenDevices]) -> dict[str, GivenDevices]:
    """Give what pods were given in all; the kubelet tells of each of their containers."""
    found: dict[str, GivenDevices] = {}
    for one in given:
        before = found.get(one.pod)
        devices = [*before.devices, *one.devices] if before is not None else one.devices
        found[one.pod] = one.model_copy(update={"devices": devices})
    return found
