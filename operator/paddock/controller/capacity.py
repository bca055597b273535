"""Keeps the memory of GPUs in the capacity of their nodes, where that is switched on."""

import asyncio
import logging

from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.ledger import Ledger
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.counting import counted, difference, wanted
from paddock.core.fleet import Device

log = logging.getLogger("paddock.capacity")
PAUSE = 1.0
"""Seconds between two comparisons while something changes."""
RETRY = 5.0
"""Seconds after which a node is tried again that could not be written."""


class Capacity:
    """Compares what nodes list with the GPUs that are known, after each change, and puts it right.

    A kubelet keeps what others wrote there; one whose state was lost starts with nothing, and a node that is made anew
    has nothing: both are changes of the node.
    """

    def __init__(self, cluster: Cluster, settings: Settings, world: World, ledger: Ledger) -> None:
        self._cluster, self._world, self._ledger = cluster, world, ledger
        self._mode = settings.node_capacity
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def at_work(self) -> bool:
        """Whether there is anything to be done by `run`."""
        return self._mode != "Disabled"

    def dress(self, device: Device) -> Device:
        """Give a device with how it is counted."""
        return counted(device, self._world.nodes.get(device.node)) if self._mode == "Enabled" else device

    def changed(self) -> None:
        """Have everything compared soon."""
        self._changed.set()

    async def run(self) -> None:
        """Compare after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(PAUSE if await self._compare() else RETRY)

    async def _compare(self) -> bool:
        """Put nodes right; False when one could not be written, and all have to be looked at again."""
        at: dict[str, list[Device]] = {name: [] for name in self._world.nodes}
        for device in self._ledger.fleet(self._world.nodes).devices:
            at.setdefault(device.node, []).append(device)
        well = True
        for name, devices in at.items():
            node = self._world.nodes.get(name)
            want = wanted(devices) if self._mode == "Enabled" else {}
            patch = difference(node.capacity, want) if node is not None else {}
            well = (not patch or await self._write(name, patch)) and well
        if not well:
            self._changed.set()
        return well

    async def _write(self, node: str, patch: dict[str, str | None]) -> bool:
        try:
            await self._cluster.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": patch}})
        except ClusterError as error:
            if not error.not_found:
                log.warning("capacity of node %s was not written: %s; again in %.0f s", node, error, RETRY)
            return error.not_found
        log.info("capacity of node %s: %s", node, ", ".join(f"{name}={count}" for name, count in patch.items()))
        return True
