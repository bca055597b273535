"""The records of placements on pods, and their reservations, where somebody else than the operator has changed them.

A record that is known from before is put back. One that is not, because the operator was started later, cannot be
written anew from what is left: its pod is replaced. In both cases what is booked for the pod stays where it is.
"""

import logging
import time
from collections.abc import Callable

from paddock.api.vocabulary import Annotation, Reason
from paddock.controller.cluster import GPUS, Cluster, ClusterError, namespaced
from paddock.controller.decisions import reservation_of
from paddock.controller.parts import Parts
from paddock.controller.store import World
from paddock.core.deployment import Deployment
from paddock.core.replica import Replica

log = logging.getLogger("paddock.records")
PAUSE = 5.0
"""Seconds between two times that the record of one pod is put back: somebody may take it off again and again."""


class Records:
    """Keeps records and reservations of pods that exist as the operator wrote them."""

    def __init__(self, cluster: Cluster, world: World, parts: Parts, look_again: Callable[[str, float], None]) -> None:
        self._cluster, self._world, self._look_again = cluster, world, look_again
        self._ledger, self._events = parts.ledger, parts.events
        self._next: dict[str, float] = {}
        """By UID of pods whose record was put back: not before when that is done again."""

    async def restore(self, deployment: Deployment) -> None:
        """Put back records and reservations of the pods of a deployment that somebody has changed or taken."""
        for one in self._world.replicas.of(deployment.key):
            record = one.record
            if record is None:
                continue
            if one.altered and not one.deleting:
                await self._put_back(deployment, one)
            if record.gpu is None:
                continue
            if await self._is_elsewhere(one, record.gpu):
                self._world.replicas.distrust(one, f"it says {record.gpu}, where nothing is reserved for it")
            elif one.key in self._world.replicas and not self._ledger.booked(one.key, record.gpu):
                log.warning("%s: its reservation on %s was lost, and is put back", one.key, record.gpu)
                await self._ledger.rebook(record.gpu, reservation_of(deployment, one.key, record))

    async def _put_back(self, deployment: Deployment, one: Replica) -> None:
        assert one.record is not None  # noqa: S101 the caller has looked
        left = self._next.get(one.uid, 0.0) - time.monotonic()
        if left > 0:
            self._look_again(deployment.key, left)
            return
        if len(self._next) > 1000:  # noqa: PLR2004 what is forgotten has no pause
            self._next.clear()
        self._next[one.uid] = time.monotonic() + PAUSE
        log.warning("%s: its record was changed, and is put back: %s", one.key, one.altered)
        body = {"metadata": {"annotations": {Annotation.PLACEMENT: one.record.dumps()}, "uid": one.uid}}
        try:
            # Annotations may be changed with the status, too, and for that the operator needs no right to change pods.
            pod = await self._cluster.patch(f"{namespaced('pods', one.namespace, one.name)}/status", body)
        except ClusterError as error:
            if not error.not_found:
                raise
            return
        self._world.replicas.apply("MODIFIED", pod)
        text = f"annotation {Annotation.PLACEMENT} of {one.name} was changed by hand, and is put back: {one.altered}"
        self._events.warning(deployment, Reason.RECORD_CHANGED, f"{text}. To have it elsewhere change spec.placement")

    async def _is_elsewhere(self, one: Replica, gpu: str) -> bool:
        """Tell whether a pod is booked on other GPUs than the one that its record names, and not there.

        Another operator may have moved it a moment ago, so that GPU is read first.
        """
        places = self._ledger.places(one.key)
        if not places or gpu in places:
            return False
        try:
            self._ledger.apply(await self._cluster.get(f"{GPUS}/{gpu}"))
        except ClusterError as error:
            if not error.not_found:
                raise
        places = self._ledger.places(one.key)
        return bool(places) and gpu not in places
