"""Leader election by a Lease: one operator acts, others stand by.

The loop of kubernetes.aio 37.0.2 cannot create its Lease, does not survive a refused connection and never releases;
so this small one. A leader that cannot renew stops acting before another can take over.
"""

import asyncio
import logging
from datetime import UTC, datetime

from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced

log = logging.getLogger("paddock.leader")
NAME = "paddock-operator"
GROUP = "/apis/coordination.k8s.io/v1"
STANDBY_PAUSE = 0.25
"""Seconds between a standby's looks at the Lease: as long as a release may go unnoticed."""

EARLY = 1 / 15
"""Share of a Lease before whose end it may be taken: so long does a successor need to decide. Whoever holds it has
stopped long before, after two thirds."""


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Leader:
    """Holds, or tries to get, the Lease.

    Whether a Lease has run out is judged by how long *this* process has seen it unchanged, so that clocks of other
    machines do not matter.
    """

    def __init__(self, cluster: Cluster, namespace: str, identity: str, seconds: float) -> None:
        self._cluster, self._namespace, self._identity, self._seconds = cluster, namespace, identity, seconds
        self._lease: JSON | None = None
        self._seen_change = float("-inf")
        self._seen: tuple[str, str] = ("", "")
        self.lost = asyncio.Event()
        """Set when leadership is lost: the process must stop acting."""

    @property
    def _path(self) -> str:
        return namespaced("leases", self._namespace, NAME, GROUP)

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        told = ""
        while True:
            try:
                holder = await self._try()
            except ClusterError as error:
                holder = f"nobody known ({error})"
            if holder is None:
                return
            if holder != told:
                log.info("standing by: the leader is %s", holder)
                told = holder
            await asyncio.sleep(min(STANDBY_PAUSE, self._seconds / 5))

    async def hold(self) -> None:
        """Renew until cancelled, or until that failed for two thirds of the Lease or for good; then `lost` is set."""
        try:
            await self._renew()
        except Exception:
            log.exception("the lease is not renewed any more")
        self.lost.set()

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed, patience = clock(), self._seconds * 2 / 3
        while (left := renewed + patience - clock()) > 0:
            await asyncio.sleep(min(self._seconds / 5, left))
            began = clock()
            try:
                # What is late must not be waited for beyond the time to stop.
                async with asyncio.timeout(min(self._seconds / 3, max(renewed + patience - began, 0))):
                    holder = await self._try()
            except (ClusterError, TimeoutError) as error:
                log.warning("cannot renew the lease: %s", str(error) or "no answer in time")
                continue
            if holder is not None:
                log.error("the lease was taken by %s", holder)
                break
            renewed = began
        else:
            log.error("the lease could not be renewed for %.0f s", clock() - renewed)

    async def release(self) -> None:
        """Give the Lease back, so that a successor need not wait."""
        lease = self._lease
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return
        lease["spec"] |= {"holderIdentity": "", "renewTime": _stamp(), "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(3):
                await self._cluster.put(self._path, lease)
        except (ClusterError, TimeoutError) as error:
            log.warning("cannot release the lease: %s", error)

    async def _try(self) -> str | None:
        """Take or renew the Lease; None when this process holds it, else the holder's name."""
        try:
            lease = await self._cluster.get(self._path)
        except ClusterError as error:
            if not error.not_found:
                raise
            return await self._create()
        spec = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._expired(spec):
            return str(holder)
        taken = (
            {}
            if holder == self._identity
            else {
                "acquireTime": _stamp(),
                "leaseTransitions": spec.get("leaseTransitions", 0) + 1,
            }
        )
        spec |= taken | {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "renewTime": _stamp(),
        }
        try:
            self._lease = await self._cluster.put(self._path, lease)
        except ClusterError as error:
            if error.conflict:
                return f"somebody quicker than {self._identity}"
            raise
        return None

    async def _create(self) -> str | None:
        body: JSON = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._seconds)),
                "acquireTime": _stamp(),
                "renewTime": _stamp(),
                "leaseTransitions": 0,
            },
        }
        try:
            self._lease = await self._cluster.post(namespaced("leases", self._namespace, None, GROUP), body)
        except ClusterError as error:
            if error.conflict:
                return "somebody quicker"
            raise
        return None

    def _expired(self, spec: JSON) -> bool:
        now = asyncio.get_running_loop().time()
        mark = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if mark != self._seen:
            self._seen, self._seen_change = mark, now
        return now - self._seen_change > float(spec.get("leaseDurationSeconds") or self._seconds) * (1 - EARLY)
