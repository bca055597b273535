"""What crashes and lost events left behind: reservations without a pod, promises without a deployment, volumes."""

import logging
import time

from paddock.api.gpu import Reservation
from paddock.api.vocabulary import Reason
from paddock.controller.cluster import Cluster, ClusterError, namespaced
from paddock.controller.ledger import Ledger
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.controller.volumes import Volumes, roots_of, used_roots

log = logging.getLogger("paddock.sweeps")
ORPHAN_AGE = 30.0
"""Seconds after which a reservation without a pod is taken back."""


class Sweeps:
    """Finds what nobody needs any more, and takes it back."""

    def __init__(self, cluster: Cluster, settings: Settings, world: World, ledger: Ledger, volumes: Volumes) -> None:
        self._cluster, self._settings, self._world = cluster, settings, world
        self._ledger, self._volumes = ledger, volumes
        self._orphans: dict[tuple[str, str, str], float] = {}

    def forsaken(self) -> set[str]:
        """Give the deployments (namespace/name) that were promised memory and are gone; a look at one takes it back."""
        return {
            one.deployment for _, one in self._ledger.promises() if self._world.deployments.get(one.deployment) is None
        }

    async def orphans(self, age: float) -> None:
        """Take back reservations whose pod does not exist, or is elsewhere: an operator ended between two steps."""
        moment = time.monotonic()
        found = {
            (gpu, one.pod, one.since)
            for gpu, one in self._ledger.reservations()
            if not self._rightful(gpu, one.pod) and (age > 0 or not self._is_awaited(one))
        }
        self._orphans = {key: self._orphans.get(key, moment) for key in found}
        for gpu, pod, since in [key for key, first in self._orphans.items() if moment - first >= age]:
            try:
                await self._take_back(gpu, pod, since)
            except ClusterError as error:
                log.warning("reservation of %s on %s cannot be taken back: %s", pod, gpu, error)
            else:
                self._orphans.pop((gpu, pod, since), None)

    async def left_by(self, deployment: str) -> None:
        """Take back what a deployment (namespace/name) that is gone had booked for pods that were not made."""
        for gpu, one in self._ledger.reservations():
            # Another operator may know of a later deployment of this name already, and book for it.
            gone = one.deployment == deployment and self._world.deployments.is_gone(one.uid)
            if gone and not self._rightful(gpu, one.pod):
                await self._take_back(gpu, one.pod, one.since)

    async def _take_back(self, gpu: str, pod: str, since: str) -> None:
        namespace, _, name = pod.partition("/")
        gone = pod in self._world.replicas or await self._cluster.is_gone(namespaced("pods", namespace), name)
        # Meanwhile the pod may have been made anew, in the same place or in another.
        if gone and not self._rightful(gpu, pod):
            log.info("reservation of %s on %s taken back: there is no such pod there", pod, gpu)
            replica = self._world.replicas.get(pod)
            keep = replica.record.gpu if replica and replica.record else None
            await self._ledger.release(pod, keep=keep, since=since)

    def _is_awaited(self, one: Reservation) -> bool:
        """Tell whether the deployment of a reservation is there and may not have been looked at since the start.

        An operator that ended before it had made the pod may have ended others for this memory: nobody else gets it.
        """
        owner = self._world.deployments.get(one.deployment)
        return owner is not None and owner.uid == one.uid and not self._world.waiting.complete

    def _rightful(self, gpu: str, pod: str) -> bool:
        """Tell whether a reservation belongs to a pod that is there, or is being made."""
        replica = self._world.replicas.get(pod)
        if replica is None:
            return pod in self._world.making
        if replica.record is None:
            return True  # Nobody knows where it is, since somebody spoiled its record: this stays until it is gone.
        named = replica.record.gpu
        # A record that names a GPU on which nothing is booked for it is not believed (`records`).
        return named == gpu or (named is not None and named not in self._ledger.places(pod))

    async def volumes(self) -> None:
        """Remove the volumes of model roots that no deployment uses any more, and mend those that pods wait for."""
        if self._settings.model_roots or self._settings.cache_folder:  # Else the operator has no right to volumes.
            self._volumes.forget()
            await self._volumes.sweep(lambda: used_roots(self._world.deployments.values(), self._settings))
            for replica in self._world.replicas.values():
                if replica.waiting is Reason.UNSCHEDULABLE and replica.record is not None:
                    await self._mend(f"{replica.namespace}/{replica.deployment}", replica.record.node)

    async def _mend(self, deployment: str, node: str | None) -> None:
        """See that the claims of a pod that cannot be scheduled are there: somebody may have removed a volume."""
        owner = self._world.deployments.get(deployment)
        if owner is None or node is None:
            return
        for root in roots_of(owner, self._settings):
            try:
                await self._volumes.ensure(root, node, owner.namespace)
            except ClusterError as error:
                log.warning("the volume for %s on %s: %s", deployment, node, error)
