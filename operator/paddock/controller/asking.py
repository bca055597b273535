"""Whether servers answer somebody now: asked themselves, once, when somebody may have to leave.

What is not answered counts as busy: a server that wants an API key, that a NetworkPolicy hides, or that is slow.
"""

import asyncio
from collections.abc import Iterable
from ipaddress import ip_address

import aiohttp

from paddock.core.pod import PORT
from paddock.core.replica import Replica
from paddock.core.traffic import counters

MOST_ASKED = 64
"""Servers for one question; of more, the others count as busy."""
AT_ONCE = 16
PATIENCE = 1.0
"""Seconds for all of them together: a search does not wait for servers that hang."""
MOST_BYTES = 65_536
"""Of an answer."""


async def idle_among(replicas: Iterable[Replica], seconds: float = PATIENCE) -> frozenset[str]:
    """Give those (namespace/name of the pod) that say of themselves that no request is worked on or waits.

    The first ones are asked, as many as are asked at most.
    """
    asked = list(replicas)[:MOST_ASKED]
    idle: set[str] = set()
    if not asked:
        return frozenset()
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(session: aiohttp.ClientSession, replica: Replica) -> None:
        async with turns:
            if await _is_idle(session, replica.address):
                idle.add(replica.key)

    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for one in asked:
                group.create_task(ask(session, one))
    except TimeoutError:
        pass  # Whoever has answered by now has answered.
    return frozenset(idle)


async def _is_idle(session: aiohttp.ClientSession, address: str) -> bool:
    try:
        host = ip_address(address)
    except ValueError:
        return False
    url = f"http://{f'[{host}]' if host.version == 6 else host}:{PORT}/metrics"  # noqa: PLR2004 version of IP
    try:
        async with session.get(url, allow_redirects=False) as answer:
            text = await answer.content.read(MOST_BYTES) if answer.ok else b""
    except (aiohttp.ClientError, OSError):
        return False
    told = counters(text.decode(errors="replace"))
    return told is not None and told.working == 0 and told.waiting == 0
