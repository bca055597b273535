"""Which pod the kubelet gave which cards of the vendors' own plugins, by its podresources interface, version v1.

Messages after k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, as far as they are needed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paddock.agent.wire import Message, at
from paddock.api.report import GivenDevices

_log = logging.getLogger(__name__)
LIST = "/v1.PodResourcesLister/List"
INTERVAL = 2.0
"""Seconds between two looks."""
VENDORS = ("nvidia.com/", "amd.com/")
"""How the resources begin whose devices have the names of cards."""


@dataclass(frozen=True, slots=True)
class ListRequest(Message):
    """Asks for all pods."""


@dataclass(frozen=True, slots=True)
class ContainerDevices(Message):
    """What a container was given of one resource."""

    resource_name: str = at(1, "")
    device_ids: tuple[str, ...] = at(2, tuple)


@dataclass(frozen=True, slots=True)
class ContainerResources(Message):
    """What a container was given."""

    name: str = at(1, "")
    devices: tuple[ContainerDevices, ...] = at(2, tuple)


@dataclass(frozen=True, slots=True)
class PodResources(Message):
    """What a pod was given."""

    name: str = at(1, "")
    namespace: str = at(2, "")
    containers: tuple[ContainerResources, ...] = at(3, tuple)


@dataclass(frozen=True, slots=True)
class ListResponse(Message):
    """Every pod of the node."""

    pod_resources: tuple[PodResources, ...] = at(1, tuple)


def given(answer: ListResponse) -> list[GivenDevices]:
    """Give the vendors' devices of each pod, in an order that does not change."""
    found = [
        GivenDevices(pod=f"{pod.namespace}/{pod.name}", resource=one.resource_name, devices=sorted(one.device_ids))
        for pod in answer.pod_resources
        for container in pod.containers
        for one in container.devices
        if one.resource_name.startswith(VENDORS)
    ]
    return sorted(found, key=lambda one: (one.pod, one.resource, one.devices))


async def follow(socket: Path, take: Callable[[list[GivenDevices] | None], None]) -> None:
    """Look for ever; None is told where the kubelet cannot be asked."""
    from paddock.agent.kubelet import KubeletError, call  # noqa: PLC0415 only where it is asked

    said = ""
    while True:
        try:
            take(given(await call(socket, LIST, ListRequest(), ListResponse)))
            said = ""
        except KubeletError as error:
            if str(error) != said:
                said = str(error)
                _log.warning("the kubelet does not tell which pod has which card: %s", said)
            take(None)
        await asyncio.sleep(INTERVAL)


async def relay(source: Path, target: Path) -> None:
    """Let the agent, which is not root, ask the kubelet, whose socket is root's: pass bytes on for ever.

    The interface behind it can only be read from.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(source)
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        except OSError as error:
            _log.warning("%s: %s", source, error)
        finally:
            writer.close()

    target.unlink(missing_ok=True)  # noqa: ASYNC240 nothing else runs yet
    server = await asyncio.start_unix_server(serve, target)
    target.chmod(0o666)  # noqa: ASYNC240 the same
    async with server:
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
