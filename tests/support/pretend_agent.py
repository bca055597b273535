"""A pretend node agent: the real agent's HTTPS server, with made-up reports and headers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddock.agent.board import Board
from paddock.agent.credentials import Credentials
from paddock.agent.lister import Statistics
from paddock.agent.server import Api, HeaderPool, start_server
from paddock.agent.settings import Settings
from paddock.api.report import (
    CachedModel,
    Fault,
    GgmlType,
    HeaderAnswer,
    HeaderFault,
    HeaderSummary,
    ListedDevice,
    NodeReport,
    TensorGroup,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiohttp import web

MIB = 1024 * 1024
GIB = 1024 * MIB


def card(number: int, gib: float, *, name: str = "NVIDIA GeForce RTX 4080", bus: int | None = None) -> ListedDevice:
    """Give an NVIDIA card; its PCI bus is its number plus one."""
    where = number + 1 if bus is None else bus
    return ListedDevice(
        name=f"CUDA{number}",
        description=name,
        backend="CUDA",
        type=GgmlType.GPU,
        raw_index=number,
        index=number,
        memory_total=int(gib * GIB),
        memory_free=int(gib * GIB),
        pci_id=f"0000:{where:02x}:00.0",
    )


def summary(gib: float = 1.0) -> HeaderSummary:
    """Give the summary of a made-up dense model with weights of about this size."""
    size = int(gib * GIB)
    return HeaderSummary(
        architecture="llama",
        name="Test",
        file_bytes=size,
        parameters=size // 2,
        block_count=16,
        context_train=8192,
        embedding_length=2048,
        feed_forward=[8192],
        head_count=[32],
        head_count_kv=[8],
        key_length=64,
        value_length=64,
        vocabulary=32000,
        input_tensors=TensorGroup(bytes=64 * MIB, count=1),
        layer_tensors=TensorGroup(bytes=size - 128 * MIB, count=144),
        output_tensors=TensorGroup(bytes=64 * MIB, count=2),
    )


class PretendAgent:
    """One agent on a loopback address. Its methods belong to the event loop that it runs in."""

    def __init__(self, node: str, address: str, port: int, credentials: Path) -> None:
        self.node, self.address, self._port, self._folder = node, address, port, credentials
        self.board = Board()
        self.headers: dict[str, HeaderSummary | HeaderFault] = {}
        self.reads: list[str] = []
        self.cache: list[CachedModel] | None = None
        """What the node's cache holds; None without one."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        if self._runner is not None:
            return
        posting, self.board = self.board.posting, Board()
        if posting is not None:
            self.board.post(posting.report)
        settings = Settings(listen=f"{self.address}:{self._port}", credentials_folder=self._folder)
        credentials = Credentials(self._folder)
        pool = HeaderPool(self._read, ("/models", "/model-cache"), 10)
        api = Api(self.board, Statistics(), credentials, pool)
        self._runner, _ = await start_server(api, settings, credentials)

    async def stop(self) -> None:
        """Fall silent."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self.board.close()
            await runner.cleanup()

    def report(self, devices: Sequence[ListedDevice], faults: Sequence[Fault] = (), **more: Any) -> None:
        """Say what the node has; cards get a UUID from node and name unless they have one."""
        named = [
            one if one.uuid or one.backend != "CUDA" else one.model_copy(update={"uuid": uuid_of(self.node, one)})
            for one in devices
        ]
        self.board.post(
            NodeReport(
                devices=named,
                faults=list(faults),
                driver_version="570.133.07",
                cuda_version="12.8",
                model_roots=["/models"],
                cache=self.cache,
                **more,
            )
        )

    def _read(self, path: str, _roots: Sequence[str]) -> HeaderAnswer:
        self.reads.append(path)
        found = self.headers.get(path)
        if isinstance(found, HeaderSummary):
            return HeaderAnswer(summary=found)
        return HeaderAnswer(fault=found or HeaderFault(code="ModelNotFound", message=f"there is no file {path}"))


def uuid_of(node: str, device: ListedDevice) -> str:
    """Give the made-up UUID of a card."""
    return f"GPU-{node}-{device.name.lower()}"
