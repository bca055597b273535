"""A small device plugin as vendors have them: whole pretend cards of one node, by number, for a real kubelet.

Like NVIDIA's it calls devices by their UUIDs and tells the runtime by an environment variable.
"""

from __future__ import annotations

import threading
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from support.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

RESOURCE = "nvidia.com/gpu"
SOCKET = "test-vendor.sock"


@dataclass
class VendorPlugin:
    """The plugin of one node."""

    folder: Path
    """The node's own: the kubelet's folder is below it."""
    cards: Sequence[str]
    """UUIDs of all cards."""
    healthy: Sequence[str]
    """Of them those that it gives; see `offer`."""
    allocated: list[str] = field(default_factory=list)
    """What the kubelet has asked for, in order."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _version: int = 0
    _server: grpc.Server | None = None

    @property
    def _plugins(self) -> Path:
        return self.folder / "own" / "var-lib-kubelet" / "device-plugins"

    def start(self) -> None:
        """Serve, and tell the kubelet."""
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        (self._plugins / SOCKET).unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
        assert server.add_insecure_port(f"unix:{self._plugins / SOCKET}")
        server.start()
        self._server = server
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix:{self._plugins / 'kubelet.sock'}", options=options) as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register")
            register(encode((1, "v1beta1"), (2, SOCKET), (3, RESOURCE)), timeout=10)

    def stop(self) -> None:
        """Leave nothing behind but a resource of which there is none."""
        with self._changed:
            self._version = -1
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(0).wait(5)
        (self._plugins / SOCKET).unlink(missing_ok=True)

    def offer(self, *healthy: str) -> None:
        """Give these cards alone from now on."""
        with self._changed:
            self.healthy, self._version = healthy, self._version + 1
            self._changed.notify_all()

    def _list(self, _request: bytes, _context: object) -> Iterator[bytes]:
        seen = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._version != seen)  # noqa: B023 of this turn
                seen = self._version
                if seen < 0:
                    return
                devices = [(one, "Healthy" if one in self.healthy else "Unhealthy") for one in self.cards]
            yield encode(*((1, encode((1, name), (2, health))) for name, health in devices))

    def _allocate(self, request: bytes, _context: object) -> bytes:
        answers = []
        for each in decode(request)[1]:
            names = [one.decode() for one in decode(each)[1]]
            self.allocated += names
            variable = encode((1, "NVIDIA_VISIBLE_DEVICES"), (2, ",".join(names)))
            answers.append((1, encode((1, variable))))
        return encode(*answers)
