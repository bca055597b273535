"""The program `paddock-agent --device-plugin`: offers the node's GPUs to the kubelet, one extended resource each.

A granule of 256 MiB of a card is one of its resource's devices, so scheduler and kubelet count its memory as they count
everything else. Which granules a container gets is all the same: each stands for the whole card.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable
from hashlib import sha256
from pathlib import Path

from paddock.agent.devicenodes import Handing, Host
from paddock.agent.deviceplugin import (
    HEALTHY,
    REGISTER,
    SERVICE,
    UNHEALTHY,
    VERSION,
    AllocateRequest,
    AllocateResponse,
    CDIDevice,
    ContainerAllocateResponse,
    Device,
    DevicePluginOptions,
    DeviceSpec,
    Empty,
    ListAndWatchResponse,
    RegisterRequest,
)
from paddock.agent.kubelet import KubeletError, Server, Unavailable, call
from paddock.agent.offers import BEAT, STATE, read_offers, write_state
from paddock.agent.settings import Settings
from paddock.agent.wire import Message
from paddock.api.binding import DevicePlugin
from paddock.core.offers import Offer

_log = logging.getLogger(__name__)

KUBELET = "kubelet.sock"
PAUSE = 1.0
"""Seconds between two looks at the offers and at the kubelet's folder."""
ATTACH = 5.0
"""Seconds within which a kubelet that took a registration asks for the list."""


class Card:
    """One offered GPU and the socket on which the kubelet asks for it."""

    def __init__(self, offer: Offer, folder: Path, host: Host, changed: Callable[[], None]) -> None:
        self.offer = offer
        self.streams = 0
        """Kubelets that listen: 1, or 0 while there is none."""
        self._folder, self._host, self._changed = folder, host, changed
        # The path of a socket may have 107 characters, the name of a resource alone 63.
        self._socket = folder / f"paddock-{sha256(offer.resource.encode()).hexdigest()[:12]}.sock"
        self._news = asyncio.Event()
        self._server: Server | None = None
        self._kubelet: int | None = None
        """Inode of the socket of the kubelet that it is registered with."""

    @property
    def told(self) -> DevicePlugin | None:
        """What the agent is told; None while the host has nothing to hand out."""
        found = self._host.handing(self.offer)
        if found is None:
            return None
        return DevicePlugin(
            resource=self.offer.resource,
            granules=self.offer.granules,
            hands=found.hands,
            groups=list(found.groups),
            registered=self.streams > 0,
        )

    def update(self, offer: Offer) -> None:
        """Take over what has changed of the offer."""
        if offer != self.offer:
            self.offer = offer
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def keep_registered(self) -> None:
        """Register unless the kubelet that runs knows of it; raises KubeletError and OSError."""
        inode = (self._folder / KUBELET).stat().st_ino
        if self._server is not None and self._kubelet == inode and self.streams and self._socket.exists():
            return
        # A kubelet that starts removes all sockets in its folder, so listening begins anew as well.
        await self.close()
        server = Server(self._socket, SERVICE)
        server.unary("GetDevicePluginOptions", Empty, self._options)
        server.unary("Allocate", AllocateRequest, self._allocate)
        server.stream("ListAndWatch", Empty, self._list)
        await server.start()
        self._server = server
        request = RegisterRequest(VERSION, self._socket.name, self.offer.resource, DevicePluginOptions())
        await call(self._folder / KUBELET, REGISTER, request, Empty)
        self._kubelet = inode
        _log.info("registered %s: %d granules", self.offer.resource, self.offer.granules)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTACH):
                while not self.streams:
                    await self._news.wait()

    async def close(self) -> None:
        """Listen no more."""
        server, self._server, self._kubelet = self._server, None, None
        if server is not None:
            await server.stop()
        self._socket.unlink(missing_ok=True)

    async def _options(self, _request: Message) -> DevicePluginOptions:
        return DevicePluginOptions()

    async def _list(self, _request: Message) -> AsyncGenerator[ListAndWatchResponse, None]:
        """Give all granules, and again whenever the card's health has changed."""
        self.streams += 1
        self._wake()
        self._changed()
        try:
            while True:
                news, health = self._news, HEALTHY if self.offer.healthy else UNHEALTHY
                yield ListAndWatchResponse(tuple(Device(f"m{number}", health) for number in range(self.offer.granules)))
                await news.wait()
        finally:
            self.streams -= 1
            self._changed()

    async def _allocate(self, request: AllocateRequest) -> AllocateResponse:
        """Give what makes the card usable, as the host has it at this moment."""
        if not self.offer.healthy:
            raise Unavailable(f"{self.offer.resource} is out of order")
        found = self._host.handing(self.offer)
        if found is None:
            raise Unavailable(f"the host has no device nodes for {self.offer.resource}")
        _log.info("gave %s as %s", self.offer.resource, found.hands)
        return AllocateResponse((_response(found),) * len(request.container_requests))


def _response(found: Handing) -> ContainerAllocateResponse:
    return ContainerAllocateResponse(
        envs=dict(found.environment),
        devices=tuple(DeviceSpec(node, node, "rw") for node in found.nodes),
        cdi_devices=(CDIDevice(found.cdi),) if found.cdi is not None else (),
    )


class Plugin:
    """All cards, and the agent that tells which."""

    def __init__(self, shared: Path, kubelet: Path, host: Host) -> None:
        self._shared, self._kubelet, self._host = shared, kubelet, host
        self._cards: dict[str, Card] = {}
        self._state: dict[str, DevicePlugin] | None = None
        self._said: dict[str, str] = {}
        self._beat = 0.0

    async def run(self) -> None:
        """Offer for ever."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(PAUSE)
        finally:
            for card in self._cards.values():
                await card.close()

    async def look(self) -> None:
        """Take one look at everything: offers, host, kubelet."""
        for offer in read_offers(self._shared):
            await self._serve(offer)
        self.tell()

    async def _serve(self, offer: Offer) -> None:
        card = self._cards.get(offer.resource)
        if card is None and self._host.handing(offer) is None:
            return self._say(offer.resource, "the host has no device nodes for it")
        if card is None:
            card = self._cards[offer.resource] = Card(offer, self._kubelet, self._host, self.tell)
        card.update(offer)
        try:
            await card.keep_registered()
        except (KubeletError, OSError) as error:
            return self._say(offer.resource, f"not registered: {error}")
        return self._say(offer.resource, "registered")

    def _say(self, resource: str, words: str) -> None:
        if self._said.get(resource) != words and words != "registered":
            _log.warning("%s: %s", resource, words)
        self._said[resource] = words

    def tell(self) -> None:
        """Tell the agent how things are, and every few seconds that they still are."""
        state = {name: told for name, card in self._cards.items() if (told := card.told) is not None}
        now = asyncio.get_running_loop().time()
        if state != self._state:
            write_state(self._shared, state)
            self._state, self._beat = state, now
        elif now - self._beat >= BEAT:
            os.utime(self._shared / STATE)
            self._beat = now


async def run(settings: Settings) -> None:
    """Offer the GPUs that the agent writes down, until cancelled."""
    assert settings.plugin_folder is not None  # noqa: S101 looked at before
    host = Host(settings.sys_folder, settings.dev_folder, map(Path, settings.cdi_folders))
    await Plugin(settings.plugin_folder, settings.kubelet_folder, host).run()
