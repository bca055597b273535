"""Dynamic resource allocation: what drivers offer, the claims of servers, and what these were given.

Read only when somebody asks, and not at all unless the operator is set to: clusters without it pay nothing. A claim is
made once its pod exists and is owned by it, so that the cluster's garbage collector takes both.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from paddock.api.vocabulary import Reason
from paddock.controller.cluster import Cluster, ClusterError, namespaced
from paddock.controller.settings import Settings
from paddock.core.dra import GROUP_PATH, SliceDevice, allocated, claim, claim_name, compare, offered, slices_by_node
from paddock.core.evidence import Evidence
from paddock.core.replica import Replica

log = logging.getLogger("paddock.claims")
FRESH = 5.0
"""Seconds that what drivers offer is used without reading it again, where a device is chosen."""
VERY_FRESH = 0.5
"""The same where an allocation is compared."""


def new_name(pod: str) -> str:
    """Give the name of the claim of a pod that is about to be made."""
    return claim_name(pod, secrets.token_hex(4))


class Claims:
    """Makes claims and compares what they were given."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        offers: dict[str, tuple[SliceDevice, ...]],
        changed: Callable[[str], None],
    ) -> None:
        """Keep `offers`, what drivers offer by node, and call `changed` with a node where that is something else."""
        self._cluster, self._settings, self._offers, self._changed = cluster, settings, offers, changed
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()
        self._made: set[str] = set()
        """UIDs of pods whose claim is there."""
        self._right: dict[str, tuple[int, str]] = {}
        """By UID of a pod: when its claim was found right, by its container's restarts, and its id once it is up."""

    # -- what drivers offer ----------------------------------------------------------------------------------------

    async def refresh(self, oldest: float = FRESH) -> None:
        """Read what drivers offer, unless that was done a moment ago."""
        if not self._settings.dra:
            return
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._read_at < oldest:
                return
            try:
                found = slices_by_node(await self._cluster.list(f"{GROUP_PATH}/resourceslices"))
            except ClusterError as error:
                if not error.not_found:
                    raise
                log.warning("this API server has no resource.k8s.io/v1: Kubernetes 1.34 or later does")
                found = {}
            self._read_at = now
            changed = [node for node in self._offers.keys() | found.keys() if self._offers.get(node) != found.get(node)]
            self._offers.clear()
            self._offers.update(found)
        for node in changed:
            self._changed(node)

    # -- claims ----------------------------------------------------------------------------------------------------

    async def ensure(self, one: Replica | None) -> str | None:
        """Make the claim that a pod waits for; gives why that is not possible. A pod that was scheduled has it."""
        record = one.record if one is not None else None
        if one is None or record is None or not record.claim:
            return None
        if one.scheduled or one.deleting or one.uid in self._made:
            return None
        await self.refresh()
        wanted = offered(record.uuid, record.pci_id, self._offers.get(record.node or "", ()))
        if wanted is None:
            return f"no driver offers {record.uuid or record.pci_id} on {record.node} any more"
        pod = {"metadata": {"name": one.name, "namespace": one.namespace, "uid": one.uid}}
        device_class = self._settings.device_classes.get(wanted.driver, wanted.driver)
        body = claim(record.claim, pod, one.deployment, wanted, device_class)
        try:
            await self._cluster.post(namespaced("resourceclaims", one.namespace, None, GROUP_PATH), body)
        except ClusterError as error:
            if error.refused:
                return error.message
            if not error.already_exists:
                raise
        if len(self._made) > 1000:  # noqa: PLR2004 what is forgotten is tried again, and found there
            self._made.clear()
        self._made.add(one.uid)
        return None

    async def look(self, one: Replica) -> Evidence | None:
        """Compare what a pod's claim was given with its card: once scheduled, with each restart, and once it is up.

        What a device's name means may change with a boot. Gives what is wrong, or awaited; None when nothing is.
        """
        record = one.record
        moment = (one.restarts, one.container_id if one.container_ready else "")
        if record is None or not record.claim or not one.scheduled or one.deleting or one.verified or one.unverified:
            return None
        if self._right.get(one.uid) in (moment, (one.restarts, one.container_id)):
            return None
        given = allocated(await self._read(one.namespace, record.claim))
        if given is None:
            return Evidence(False, Reason.AWAITING_EVIDENCE, f"its claim {record.claim} was given nothing yet")
        await self.refresh(VERY_FRESH)
        found = compare(given, self._offers.get(record.node or "", ()), record.uuid, record.pci_id)
        if found.same is not True:
            return Evidence(False, Reason.WRONG_DEVICE if found.same is False else Reason.NO_EVIDENCE, found.message)
        if len(self._right) > 1000:  # noqa: PLR2004 what is forgotten is read again
            self._right.clear()
        self._right[one.uid] = moment
        return None

    async def _read(self, namespace: str, name: str) -> dict[str, object]:
        try:
            return await self._cluster.get(namespaced("resourceclaims", namespace, name, GROUP_PATH))
        except ClusterError as error:
            if error.not_found:
                return {}
            raise
