"""The operator within the process of a test, which ends right before a request that the test names by its number.

From then on nothing that it does reaches the API server, as after SIGKILL; its memory is dropped. What it is told of
the cluster comes from plain watches, so that a start takes no longer than its lists.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp

from paddock.controller.cluster import Cluster, ClusterError, configuration
from paddock.controller.controller import Controller
from paddock.controller.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.harness import Plane

ASIDE = ("/events", "/leases")
"""Requests that do not count."""


class Fuse(Cluster):
    """A connection that ends before its request of some number, counted from the first promise that is written."""

    number: int | None = None
    count = 0
    last = ""
    """The request before which it ended."""

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        self._burn(method, path, body)
        if self.last:
            raise ClusterError(0, "Dead", "this operator is dead")
        return await super().request(method, path, body, **more)

    def _burn(self, method: str, path: str, body: object) -> None:
        promises = body.get("status", {}).get("promises") if isinstance(body, dict) else None
        begun = self.count > 0 or (method == "PUT" and bool(promises))
        if begun and not self.last and not any(word in path for word in ASIDE):
            self.count += 1
            if self.count == self.number:
                self.last = f"{method} {path}"


class Mortal:
    """One operator."""

    def __init__(self, plane: Plane, number: int | None = None) -> None:
        """Start it; it ends before its request of this number, if one is given."""
        self._plane, self._tasks = plane, list[asyncio.Task[None]]()
        self._kubeconfig = str(plane.kubeconfig)
        self._fuse: Fuse
        self._controller: Controller
        plane.background.call(self._start(number), 60)

    @property
    def dead(self) -> str:
        """The request before which it ended; empty while it lives."""
        return self._fuse.last

    @property
    def count(self) -> int:
        """Requests since the first promise."""
        return self._fuse.count

    async def _start(self, number: int | None) -> None:
        self._fuse = Fuse(await configuration(self._kubeconfig))
        self._fuse.number = number
        settings = Settings.from_environment(self._plane.environment(listen=""))
        self._controller = one = Controller(self._fuse, settings)
        await one.start()
        group = "/apis/paddock.dev/v1alpha1"
        for path, handler in (
            ("/api/v1/nodes", one.node_event),
            ("/api/v1/pods", one.pod_event),
            (f"{group}/gpus", one.gpu_event),
            (f"{group}/placementpolicies", one.policies.apply),
            (f"{group}/modeldeployments", one.deployment_event),
        ):
            self._tasks.append(asyncio.create_task(self._watch(path, handler)))

    async def _watch(self, path: str, handler: Callable[[str | None, Mapping[str, Any]], None]) -> None:
        """Hand over what is there, and then each change."""
        headers = {"Authorization": f"Bearer {self._plane.server.token}"}
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(self._plane.server.url, headers=headers, connector=connector) as http:
            async with http.get(path) as answer:
                body = await answer.json()
            for item in body["items"]:
                handler(None, item)
            query = {"watch": "1", "resourceVersion": body["metadata"]["resourceVersion"]}
            timeout = aiohttp.ClientTimeout(total=None)
            async with http.get(path, params=query, timeout=timeout, read_bufsize=2**22) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    handler(event["type"], event["object"])

    def end(self) -> None:
        """End it where it is; nothing of it reaches the API server any more."""
        self._plane.background.call(self._end(), 30)

    async def _end(self) -> None:
        self._fuse.last = self._fuse.last or "the end"
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._controller.stop()
        await self._fuse.close()
