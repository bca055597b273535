"""A small driver for dynamic resource allocation: pretend cards of one node, offered to a real scheduler and kubelet.

It does what drivers of vendors do: it publishes a ResourceSlice, registers with the kubelet, and answers it with the
CDI device of the card that a claim was given. The kubelet's folder, and that of CDI, are the node's own.
"""

from __future__ import annotations

import json
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from support.wire import decode, encode, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DRIVER = "gpu.nvidia.com"
KIND = "test.paddock.dev/gpu"
IN_KUBELET = Path("/var/lib/kubelet")
Object = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """A card as the driver tells of it."""

    uuid: str
    pci_id: str


@dataclass
class Driver:
    """The driver of one node."""

    node: str
    folder: Path
    """The node's own: kubelet's folder, CDI, and what the pretend runtime adds to containers."""
    cards: Sequence[Card]
    """By position: the first is gpu-0."""
    claim_of: Callable[[str, str], Object]
    """Gives a claim by namespace and name."""
    publish: Callable[[Object], None]
    """Creates or replaces an object."""
    before_prepare: Callable[[Driver], None] = lambda _: None
    """Called before a claim is prepared for the first time."""
    prepared: list[str] = field(default_factory=list)
    """UIDs of claims that are prepared now."""
    generation: int = 0
    _servers: list[grpc.Server] = field(default_factory=list)

    @property
    def _kubelet(self) -> Path:
        return self.folder / "own" / "var-lib-kubelet"

    @property
    def _sockets(self) -> tuple[Path, Path]:
        plugins, registry = self._kubelet / "plugins" / DRIVER, self._kubelet / "plugins_registry"
        return plugins / "dra.sock", registry / f"{DRIVER}.sock"

    def start(self) -> None:
        """Offer the cards, serve, and let the kubelet find the driver."""
        self.offer(self.cards)
        own, registration = self._sockets
        prepare, release = self._guarded(self._prepare), self._guarded(self._unprepare)
        served = {
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {
                "NodePrepareResources": prepare,
                "NodeUnprepareResources": release,
            }
        }
        registered = {"pluginregistration.Registration": {"GetInfo": _info, "NotifyRegistrationStatus": _noted}}
        for socket, services in ((own, served), (registration, registered)):
            socket.parent.mkdir(parents=True, exist_ok=True)
            socket.unlink(missing_ok=True)
            server = grpc.server(futures.ThreadPoolExecutor(4))
            for service, methods in services.items():
                handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
                server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
            assert server.add_insecure_port(f"unix://{socket}")
            server.start()
            self._servers.append(server)

    def stop(self) -> None:
        """Leave nothing behind on the node."""
        for server in self._servers:
            server.stop(0).wait(5)
        for socket in self._sockets:
            socket.unlink(missing_ok=True)
        for file in (self.folder / "cdi").glob("paddock-test-*.json"):
            file.unlink()

    def offer(self, cards: Sequence[Card]) -> None:
        """Tell of the cards, from now on in this order: their names are their positions."""
        self.cards, self.generation = cards, self.generation + 1
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "uuid": {"string": card.uuid},
                    "resource.kubernetes.io/pciBusID": {"string": card.pci_id},
                },
            }
            for number, card in enumerate(cards)
        ]
        pool = {"name": self.node, "generation": self.generation, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self.node, "pool": pool, "devices": devices}
        meta = {"name": f"{self.node}-{DRIVER}"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}
        self.publish(body)

    # -- what the kubelet asks -------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[str, str, str], bytes]) -> Callable[[bytes, object], bytes]:
        """Answer for each claim of a request; what goes wrong with one is its error."""

        def answer(request: bytes, _context: object) -> bytes:
            entries = []
            for each in decode(request)[1]:
                asked = decode(each)
                namespace, uid, name = (text(asked, number) for number in (1, 2, 3))
                try:
                    result = work(namespace, uid, name)
                except Exception as error:  # noqa: BLE001 the kubelet tells it on
                    result = encode((2 if work == self._prepare else 1, f"{type(error).__name__}: {error}"))
                entries.append((1, encode((1, uid), (2, result))))
            return encode(*entries)

        return answer

    def _prepare(self, namespace: str, uid: str, name: str) -> bytes:
        if uid not in self.prepared:
            self.before_prepare(self)
        claim = self.claim_of(namespace, name)
        assert claim["metadata"]["uid"] == uid, "another claim of this name"
        out = []
        for given in claim["status"]["allocation"]["devices"]["results"]:
            device = self._cdi(uid, given["device"])
            fields = ((1, given["request"]), (2, given["pool"]), (3, given["device"]), (4, device))
            out.append((1, encode(*fields)))
        self.prepared = [*{*self.prepared, uid}]
        return encode(*out)

    def _cdi(self, uid: str, device: str) -> str:
        """Write down what a container gets that has the claim: the card that has this name now."""
        card = self.cards[int(device.removeprefix("gpu-"))]
        mounts = [
            {"hostPath": str(self.folder / name), "containerPath": f"/run/pretend-{name}", "options": ["bind", mode]}
            for name, mode in (("toolkit", "ro"), ("accounts", "rw"))
        ]
        edits = {"env": [f"NVIDIA_VISIBLE_DEVICES={card.uuid}"], "mounts": mounts}
        spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": uid, "containerEdits": edits}]}
        file = self.folder / "cdi" / f"paddock-test-{uid}.json"
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(spec))
        draft.rename(file)
        return f"{KIND}={uid}"

    def _unprepare(self, _namespace: str, uid: str, _name: str) -> bytes:
        self.prepared = [one for one in self.prepared if one != uid]
        (self.folder / "cdi" / f"paddock-test-{uid}.json").unlink(missing_ok=True)
        return b""


def _info(_request: bytes, _context: object) -> bytes:
    endpoint = IN_KUBELET / "plugins" / DRIVER / "dra.sock"
    return encode((1, "DRAPlugin"), (2, DRIVER), (3, str(endpoint)), (4, "v1.DRAPlugin"))


def _noted(_request: bytes, _context: object) -> bytes:
    return b""
