"""Measures how long a server that is up waits for its proof."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from paddock.api.report import DeviceProcess, DeviceUse
from support.client import eventually
from support.harness import API, MODEL
from support.pretend_agent import GIB, MIB, card

if TYPE_CHECKING:
    from bench.figures import Figures
    from support.harness import Plane

NODE, NAMESPACE, COUNT = "proof", "proof", 24
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LATE = 1.0
"""Seconds from a server's being up to the driver's word: the agent looks once a second, so this is the worst case."""
GATE = "paddock.dev/verified"


def measure_proof(site: Plane, figures: Figures) -> None:
    """Have servers come up, one after the other and at once, and note when each is proven."""
    site.client.do("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    cards = [card(slot, 80) for slot in range(8)]
    site.node(NODE, cards)
    eventually(
        lambda: len([one for one in site.client.items(f"{API}/gpus") if one.get("status", {}).get("node") == NODE]) == 8
    )
    watch = _Watch(site, [str(one.pci_id) for one in cards])
    site.report(NODE, cards, uses=watch.uses())
    single, many = asyncio.run(watch.run())
    figures.put("proof_p50", statistics.median(single) * 1000)
    figures.put("proof_worst", max(single) * 1000)
    figures.put("proof_many", max(many) * 1000)


class _Watch:
    """Sees pods come up, tells of their processes as an agent would, and notes when they are proven."""

    def __init__(self, site: Plane, pci: list[str]) -> None:
        self._site, self._pci = site, pci
        self._processes: dict[str, list[DeviceProcess]] = {one: [] for one in pci}
        self._up: dict[str, float] = {}
        self._proven: dict[str, float] = {}
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def uses(self) -> list[DeviceUse]:
        """Give what the driver lists now."""
        return [
            DeviceUse(
                pci_id=pci,
                source="NVML",
                used=300 * MIB + sum(one.bytes or 0 for one in processes),
                processes=list(processes),
            )
            for pci, processes in self._processes.items()
        ]

    async def run(self) -> tuple[list[float], list[float]]:
        """Give the seconds of servers that come one after the other, and of those that come together."""
        server = self._site.server
        headers = {"Authorization": f"Bearer {server.token}"}
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(server.url, headers=headers, connector=connector) as self._http:
            watching = asyncio.create_task(self._follow())
            try:
                single = []
                for number in range(COUNT):
                    single += await self._serve([f"one-{number}"])
                many = await self._serve([f"many-{number}" for number in range(COUNT)])
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        return single, many

    async def _serve(self, names: list[str]) -> list[float]:
        for number, name in enumerate(names):
            where = {"devices": [{"node": NODE, "index": number % len(self._pci)}]}
            body = {
                "apiVersion": "paddock.dev/v1alpha1",
                "kind": "ModelDeployment",
                "metadata": {"name": name},
                "spec": {"model": {"source": f"file://{MODEL}"}, "placement": where},
            }
            async with self._http.post(f"{API}/namespaces/{NAMESPACE}/modeldeployments", json=body) as answer:
                assert answer.status == 201, await answer.text()
        async with asyncio.timeout(120):
            while not set(names) <= self._proven.keys():
                self._news.clear()
                await self._news.wait()
        return [self._proven[name] - self._up[name] for name in names]

    async def _follow(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get(PODS, params={"watch": "1"}, timeout=timeout, read_bufsize=2**22) as answer:
            async for line in answer.content:
                self._look(json.loads(line)["object"], time.monotonic())

    def _look(self, pod: dict[str, Any], moment: float) -> None:
        name = pod["metadata"].get("labels", {}).get("paddock.dev/model-deployment", "")
        conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", ())}
        if conditions.get("ContainersReady") == "True" and name not in self._up:
            self._up[name] = moment
            task = asyncio.create_task(self._tell(pod))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if conditions.get(GATE) == "True" and name not in self._proven:
            self._proven[name] = moment
            self._news.set()

    async def _tell(self, pod: dict[str, Any]) -> None:
        await asyncio.sleep(LATE)
        record = json.loads(pod["metadata"]["annotations"]["paddock.dev/placement"])
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        processes = self._processes[record["pci_id"]]
        processes.append(
            DeviceProcess(
                pid=1000 + len(self._up),
                bytes=int(1.2 * GIB),
                pod=pod["metadata"]["uid"],
                container=container,
                command="llama-server",
            )
        )
        cards = [card(slot, 80) for slot in range(len(self._pci))]
        await asyncio.to_thread(self._site.report, NODE, cards, uses=self.uses())
