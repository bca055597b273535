"""A leader that cannot renew its Lease stops before another may take it, however the API server fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from paddock.controller.cluster import ClusterError
from paddock.controller.leader import EARLY, Leader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paddock.controller.cluster import Cluster

LEASE = 3.0


class Answers:
    """An API server with one Lease, which fails from some moment on."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"metadata": {}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        self.fail: Callable[[], Awaitable[None]] | None = None

    async def get(self, _: str) -> dict[str, Any]:
        if self.fail is not None:
            await self.fail()
        return {"metadata": {}, "spec": dict(self.lease["spec"])}

    async def put(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        self.lease = body
        return body


async def refuses() -> None:
    raise ClusterError(0, "Unreachable", "connection refused")


async def hangs() -> None:
    await asyncio.Event().wait()


async def is_slow() -> None:
    """Each request fails just before it would be given up."""
    await asyncio.sleep(LEASE / 3 * 0.95)
    raise ClusterError(504, "Timeout", "etcd")


@pytest.mark.parametrize("failure", [refuses, hangs, is_slow])
async def test_it_stops_before_another_may_act(failure: Callable[[], Awaitable[None]]) -> None:
    answers, clock = Answers(), asyncio.get_running_loop().time
    leader = Leader(cast("Cluster", answers), "paddock-system", "one", LEASE)
    await leader.acquire()
    renewed = clock()
    answers.fail = failure
    await asyncio.wait_for(leader.hold(), LEASE * 2)
    assert leader.lost.is_set()
    assert clock() - renewed < LEASE * (1 - EARLY), "another could have begun"


async def test_it_stays_while_it_can_renew() -> None:
    answers = Answers()
    leader = Leader(cast("Cluster", answers), "paddock-system", "one", 0.5)
    await leader.acquire()
    first = answers.lease["spec"]["renewTime"]
    holding = asyncio.create_task(leader.hold())
    await asyncio.wait({holding}, timeout=1.5)
    assert not leader.lost.is_set()
    assert answers.lease["spec"]["renewTime"] != first
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
