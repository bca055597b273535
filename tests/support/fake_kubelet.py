"""The kubelet's side of the device plugin interface, in this process: registers, listens, allocates.

Like the kubelet it removes the sockets of its folder when it starts, and calls a plugin back while that registers.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from support.protos import classes

TYPES = classes(Path(__file__).parents[1] / "agent" / "protos" / "deviceplugin_v1beta1.proto")
_OPTIONS = (("grpc.default_authority", "localhost"),)


class FakeKubelet:
    """A kubelet in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices: dict[str, dict[str, str]] = {}
        """Health of each device of each resource, as it was told last."""
        self.registrations: list[str] = []
        self._endpoints: dict[str, Path] = {}
        self._streams: list[asyncio.Task[None]] = []
        self._server: Any = None

    async def start(self) -> None:
        """Begin: the sockets of plugins of before are gone."""
        for left in self.folder.glob("*.sock"):
            left.unlink()
        self._server = aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, TYPES["RegisterRequest"].FromString, TYPES["Empty"].SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        """End as a crash would: whoever was listened to is not any more."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        self._streams = []
        if self._server is not None:
            await self._server.stop(None)

    async def _register(self, request: Any, context: Any) -> Any:
        if request.version != "v1beta1" or "/" not in request.resource_name:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such version or name")
        socket = self.folder / request.endpoint
        try:
            await self._call(socket, "GetDevicePluginOptions", "Empty", "DevicePluginOptions", TYPES["Empty"]())
        except aio.AioRpcError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"failed to dial device plugin: {error.details()}")
        self.registrations.append(request.resource_name)
        self._endpoints[request.resource_name] = socket
        self._streams.append(asyncio.create_task(self._follow(request.resource_name, socket)))
        return TYPES["Empty"]()

    async def _follow(self, resource: str, socket: Path) -> None:
        try:
            with contextlib.suppress(aio.AioRpcError):
                await self._listen(resource, socket)
        finally:
            self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), "Unhealthy")

    async def _listen(self, resource: str, socket: Path) -> None:
        async with aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            ask = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                TYPES["Empty"].SerializeToString,
                TYPES["ListAndWatchResponse"].FromString,
            )
            async for told in ask(TYPES["Empty"]()):
                self.devices[resource] = {one.ID: one.health for one in told.devices}

    async def _call(self, socket: Path, method: str, asked: str, answered: str, request: Any) -> Any:
        async with aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            ask = channel.unary_unary(
                f"/v1beta1.DevicePlugin/{method}", TYPES[asked].SerializeToString, TYPES[answered].FromString
            )
            return await ask(request, timeout=5)

    async def allocate(self, resource: str, *ids: str) -> Any:
        """Have one container given these devices; gives what it gets. Raises AioRpcError."""
        request = TYPES["AllocateRequest"]()
        request.container_requests.add(devices_ids=ids)
        socket = self._endpoints[resource]
        answer = await self._call(socket, "Allocate", "AllocateRequest", "AllocateResponse", request)
        (only,) = answer.container_responses
        return only

    def allocatable(self, resource: str) -> int:
        """Count the healthy devices of a resource."""
        return sum(health == "Healthy" for health in self.devices.get(resource, {}).values())
