"""What the kubelet tells of cards, over its socket, and the relay to it for an agent that is not root."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from paddock.agent.kubelet import Server
from paddock.agent.podresources import (
    ContainerDevices,
    ContainerResources,
    ListRequest,
    ListResponse,
    PodResources,
    follow,
    given,
    relay,
)
from paddock.api.report import GivenDevices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def pod(name: str, *devices: tuple[str, str]) -> PodResources:
    each = tuple(ContainerDevices(resource_name=resource, device_ids=(one,)) for resource, one in devices)
    return PodResources(name=name, namespace="team", containers=(ContainerResources(name="server", devices=each),))


ANSWER = ListResponse((pod("b", ("nvidia.com/gpu", "GPU-2")), pod("a", ("nvidia.com/gpu", "GPU-1"), ("x.y/z", "1"))))
GIVEN = [
    GivenDevices(pod="team/a", resource="nvidia.com/gpu", devices=["GPU-1"]),
    GivenDevices(pod="team/b", resource="nvidia.com/gpu", devices=["GPU-2"]),
]


def test_only_cards_of_vendors_are_told() -> None:
    assert given(ANSWER) == GIVEN


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Path]:
    """Give the socket of a made-up kubelet."""

    async def answer(_: ListRequest) -> ListResponse:
        return ANSWER

    server = Server(tmp_path / "kubelet.sock", "v1.PodResourcesLister")
    server.unary("List", ListRequest, answer)
    await server.start()
    yield tmp_path / "kubelet.sock"
    await server.stop()


@contextlib.asynccontextmanager
async def running(*jobs: asyncio.Task[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def first(socket: Path) -> list[GivenDevices] | None:
    """Give what is heard first at a socket."""
    heard: asyncio.Future[list[GivenDevices] | None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(follow(socket, lambda one: heard.done() or heard.set_result(one)))
    async with running(task), asyncio.timeout(20):
        return await heard


async def test_the_agent_hears_the_kubelet(kubelet: Path) -> None:
    assert await first(kubelet) == GIVEN


async def test_a_kubelet_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert await first(tmp_path / "none.sock") is None


async def test_the_relay_passes_calls_on_to_everybody(kubelet: Path, tmp_path: Path) -> None:
    target = tmp_path / "relay.sock"
    async with running(asyncio.create_task(relay(kubelet, target))):
        async with asyncio.timeout(10):
            while not target.exists() or target.stat().st_mode & 0o777 != 0o666:  # noqa: ASYNC110 told by no event
                await asyncio.sleep(0.01)
        assert await first(target) == GIVEN
        assert await first(target) == GIVEN, "a second time, too"
