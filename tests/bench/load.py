"""What the bench asks of the API server: create objects, and note when pods appear."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from support.harness import API, MODEL

if TYPE_CHECKING:
    from types import TracebackType

    from support.apiserver import ApiServer

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"{API}/namespaces/{NAMESPACE}/modeldeployments"
CONNECTIONS = 32


class Load:
    """A client with a watch on all pods of the bench's namespace."""

    def __init__(self, server: ApiServer) -> None:
        headers = {"Authorization": f"Bearer {server.token}"}
        self._server, self._headers = server, headers
        self.seen: dict[str, float] = {}
        """When each pod was seen first, by its owner's name or its own."""
        self._news = asyncio.Event()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=False, limit=CONNECTIONS)
        return aiohttp.ClientSession(self._server.url, headers=self._headers, connector=connector)

    async def __aenter__(self) -> Self:
        self._http, self._watcher = self._open(), self._open()
        async with self._http.get(PODS) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        self._watching = asyncio.create_task(self._watch(version))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._http.close()
        await self._watcher.close()

    async def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._watcher.get(PODS, params=query, timeout=timeout, read_bufsize=2**22) as answer:
            async for line in answer.content:
                moment = time.monotonic()
                meta = json.loads(line)["object"]["metadata"]
                name = meta.get("labels", {}).get("paddock.dev/model-deployment", meta["name"])
                self.seen.setdefault(name, moment)
                self._news.set()

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        async with self._http.post(path, json=body) as answer:
            if answer.status != 201:
                raise RuntimeError(f"{path}: {await answer.text()}")

    async def deployment(self, name: str) -> None:
        """Create a ModelDeployment."""
        body = {
            "apiVersion": "paddock.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name},
            "spec": {"model": {"source": f"file://{MODEL}"}},
        }
        await self._create(DEPLOYMENTS, body)

    async def pod(self, name: str) -> None:
        """Create a bare pod that no node takes."""
        spec = {"nodeSelector": {"no": "where"}, "containers": [{"name": "server", "image": "x", "args": ["-m", "/m"]}]}
        await self._create(PODS, {"metadata": {"name": name, "labels": {"bench": "bare"}}, "spec": spec})

    async def delete(self, path: str, selector: str = "") -> None:
        """Delete all objects of a list."""
        query = {"labelSelector": selector} if selector else {}
        async with self._http.delete(path, params=query, json={"gracePeriodSeconds": 0}) as answer:
            await answer.read()

    async def one_at_a_time(self, kind: str, count: int, pause: float) -> list[float]:
        """Create objects one after the other; gives the seconds from each request to its pod."""
        make = self.pod if kind == "pod" else self.deployment
        taken = []
        for number in range(count):
            name = f"{kind}-one-{number}"
            began = time.monotonic()
            await make(name)
            await self._until({name})
            taken.append(self.seen[name] - began)
            await asyncio.sleep(pause)
        return taken

    async def at_once(self, kind: str, count: int, title: str = "many") -> float:
        """Create many objects at once; gives the seconds from the first request to the last pod."""
        make = self.pod if kind == "pod" else self.deployment
        names = {f"{kind}-{title}-{number}" for number in range(count)}
        began = time.monotonic()
        await asyncio.gather(*(make(name) for name in names))
        await self._until(names)
        return max(self.seen[name] for name in names) - began

    async def _until(self, names: set[str], seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while not names <= self.seen.keys():
                self._news.clear()
                await self._news.wait()
