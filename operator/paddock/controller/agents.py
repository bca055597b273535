"""The only module that talks to node agents: one long poll for each, and header reads.

An agent's node is what its pod's spec says, never what its report says.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
from pydantic import ValidationError

from paddock.api.report import HeaderAnswer, NodeReport
from paddock.controller.credentials import SERVER_NAME, Credentials
from paddock.controller.store import Latest
from paddock.core.inventory import combine

log = logging.getLogger("paddock.agents")
LONGEST_WAIT = 50.0
"""Seconds that a long poll is held open at most."""
LONGEST_EXTRA = 15.0
"""Seconds that the answer to a poll may be late at most."""
PATIENCE = 5.0
"""Seconds within which an agent's first answer is waited for before anything is placed without it."""
HEADER_TIMEOUT = 20.0
LARGEST_ANSWER = 4 * 1024 * 1024


class AgentError(Exception):
    """An agent cannot be reached or answers nonsense."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one agent is."""

    pod: str
    node: str
    address: str


OnReport = Callable[[str, NodeReport], Awaitable[None]]
OnSilent = Callable[[str, str], Awaitable[None]]


class Agents:
    """Follows every agent; tells what they report and when a node's agents have fallen silent."""

    def __init__(
        self, credentials: Credentials, port: int, ttl: float, on_report: OnReport, on_silent: OnSilent
    ) -> None:
        self._credentials, self._port, self._ttl = credentials, port, ttl
        # An agent whose node is lost closes no connection: a poll ends in time to notice that within the TTL.
        self._wait = max(1, int(min(LONGEST_WAIT, ttl / 2)))
        self._patience = self._wait + min(LONGEST_EXTRA, ttl / 2)
        self._on_report, self._on_silent = on_report, on_silent
        self._tasks: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}
        self._reports: dict[str, dict[str, NodeReport]] = {}
        self._ageing: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._latest = Latest()
        self._since: dict[str, float] = {}
        self.nodes_known: Container[str] = ()
        """Names of the nodes that exist, kept by others."""

    async def trust(self, credentials: Credentials) -> None:
        """Use these from now on: the Secret was made anew. Agents take theirs from it when the kubelet brings it."""
        if credentials != self._credentials:
            log.warning("the agents' Secret is another one: agents are asked with the new key")
            self._credentials = credentials
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def close(self) -> None:
        """Stop following, for good."""
        self._closed = True
        tasks = [task for _, task in self._tasks.values()] + list(self._ageing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def settled(self) -> bool:
        """Tell whether every agent that is followed has answered, or had its time to."""
        now = asyncio.get_running_loop().time()
        return all(
            pod in self._reports.get(endpoint.node, {}) or now - self._since.get(pod, now) > PATIENCE
            for pod, (endpoint, _) in self._tasks.items()
        )

    def report(self, node: str) -> NodeReport | None:
        """Give the latest report of a node; None when its agents are silent or unknown."""
        reports = self._reports.get(node)
        return combine(reports) if reports else None

    def nodes(self) -> list[str]:
        """Give the nodes whose agents are there and have reported."""
        followed = {endpoint.node for endpoint, _ in self._tasks.values()}
        return sorted(node for node, reports in self._reports.items() if reports and node in followed)

    def pods(self) -> list[str]:
        """Give the agents' pods that are followed, as namespace/name."""
        return list(self._tasks)

    def missing(self, listed: Collection[str]) -> list[tuple[str, str]]:
        """Give pod (namespace/name) and UID of the agents that are known and not in a list."""
        return self._latest.missing(listed)

    def forget(self, node: str) -> None:
        """Drop what agents reported whose pods are gone: a node that comes back under its name is another one."""
        ageing = self._ageing.pop(node, None)
        if ageing is not None:
            ageing.cancel()
        reports = self._reports.get(node, {})
        for pod in [pod for pod in reports if pod not in self._tasks]:
            del reports[pod]

    def apply(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Follow or leave an agent, after an event of its pod."""
        meta, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
        pod = f"{meta['namespace']}/{meta['name']}"
        if self._closed or not self._latest.take(type_, pod, meta):
            return
        address, node = status.get("podIP"), spec.get("nodeName")
        gone = type_ == "DELETED" or "deletionTimestamp" in meta or status.get("phase") in ("Failed", "Succeeded")
        wanted = None if gone or not address or not node else Endpoint(pod, node, address)
        known = self._tasks.get(pod)
        if known is not None and known[0] == wanted:
            return
        if known is not None:
            known[1].cancel()
            del self._tasks[pod]
            self._age(known[0])
        if wanted is not None:
            self._since[pod] = asyncio.get_running_loop().time()
            task = asyncio.create_task(self._follow(wanted), name=f"agent {pod}")
            self._tasks[pod] = (wanted, task)

    async def header(self, node: str, path: str) -> HeaderAnswer:
        """Ask an agent of the node for the summary of a GGUF header. Raises AgentError."""
        there = [one for one, _ in self._tasks.values() if one.node == node]
        if not there:
            raise AgentError(f"no agent on {node}")
        reports = self._reports.get(node, {})
        endpoint = next((one for one in reversed(there) if one.pod in reports), there[-1])
        url = f"{self._url(endpoint)}/v1/header?{urlencode({'path': path})}"
        data, _ = await self._get(url, {}, HEADER_TIMEOUT)
        try:
            return HeaderAnswer.model_validate_json(data)
        except ValidationError as error:
            raise AgentError(f"the agent on {node} gives an answer that cannot be read") from error

    # ----------------------------------------------------------------------------------------------------------

    def _url(self, endpoint: Endpoint) -> str:
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        return f"https://{host}:{self._port}"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context(cadata=self._credentials.certificate_authority)
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            headers = {"Authorization": f"Bearer {self._credentials.token}"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        return self._session

    async def _get(self, url: str, headers: Mapping[str, str], seconds: float) -> tuple[bytes, str | None]:
        """Give body and ETag; an empty body means unchanged."""
        limits = aiohttp.ClientTimeout(total=seconds, connect=5)
        try:
            async with self._open().get(url, headers=headers, timeout=limits, server_hostname=SERVER_NAME) as answer:
                if answer.status == 304:  # noqa: PLR2004 HTTP: not modified
                    return b"", None
                data = await answer.content.read(LARGEST_ANSWER)
                if answer.status != 200:  # noqa: PLR2004 HTTP
                    raise AgentError(f"{url.partition('?')[0]} answers {answer.status}: {data[:200]!r}")
                while chunk := await answer.content.read(LARGEST_ANSWER - len(data)):
                    data += chunk
                return data, answer.headers.get("ETag")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AgentError(f"{url.partition('?')[0]}: {str(error) or type(error).__name__}") from error

    async def _follow(self, endpoint: Endpoint) -> None:
        """Poll one agent for ever."""
        loop = asyncio.get_running_loop()
        etag: str | None = None
        delay, heard, told = 0.5, loop.time(), ""
        while True:
            try:
                query, headers = (f"?wait={self._wait}", {"If-None-Match": etag}) if etag else ("", {})
                data, tag = await self._get(f"{self._url(endpoint)}/v1/devices{query}", headers, self._patience)
                if data:
                    await self._take(endpoint, NodeReport.model_validate_json(data))
                    etag = tag
                delay, heard, told = 0.5, loop.time(), ""
            except (AgentError, ValidationError) as error:
                if str(error) != told:
                    log.warning("agent on %s: %s", endpoint.node, error)
                    told = str(error)
                if loop.time() - heard > self._ttl:
                    etag = None
                    await self._silent(endpoint, f"no answer for {self._ttl:.0f} s: {error}")
                await asyncio.sleep(delay)
                delay = min(10.0, delay * 1.6)
            except Exception:
                log.exception("agent on %s: what it says cannot be taken over", endpoint.node)
                etag = None
                await asyncio.sleep(delay)
                delay = min(10.0, delay * 1.6)

    async def _take(self, endpoint: Endpoint, report: NodeReport) -> None:
        ageing = self._ageing.pop(endpoint.node, None)
        if ageing is not None:
            ageing.cancel()
        reports = self._reports.setdefault(endpoint.node, {})
        for pod in [pod for pod in reports if pod not in self._tasks]:
            del reports[pod]
        reports[endpoint.pod] = report
        await self._on_report(endpoint.node, combine(reports))

    async def _silent(self, endpoint: Endpoint, why: str) -> None:
        reports = self._reports.get(endpoint.node, {})
        if reports.pop(endpoint.pod, None) is None:
            return
        if reports:
            await self._on_report(endpoint.node, combine(reports))
        else:
            await self._on_silent(endpoint.node, why)

    def _age(self, endpoint: Endpoint) -> None:
        """Let a report live on for a while after its agent's pod went: a rolling update must not empty the fleet."""

        async def wait() -> None:
            await asyncio.sleep(self._ttl)
            self._ageing.pop(endpoint.node, None)
            for pod in [pod for pod in self._reports.get(endpoint.node, {}) if pod not in self._tasks]:
                await self._silent(Endpoint(pod, endpoint.node, ""), "its agent's pod is gone")

        reports = self._reports.get(endpoint.node, {})
        if endpoint.pod not in reports:
            return
        if endpoint.node not in self.nodes_known:
            reports.pop(endpoint.pod)
        elif endpoint.node not in self._ageing:
            # Also where another agent is there: it may be of another kind of device, or never report.
            self._ageing[endpoint.node] = asyncio.create_task(wait(), name=f"age {endpoint.node}")
