"""`paddock devices`: every GPU of the fleet."""

from collections.abc import Sequence

from paddock.cli.access import GPUS
from paddock.cli.output import Output
from paddock.cli.reading import Gpu, gpus_of, listed
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column, Row
from paddock.cli.target import Session
from paddock.cli.words import clean, model_of, plural, size, size_of

NONE_KNOWN = "No GPU is known yet. Do node agents run? kubectl get pods -A -l app.kubernetes.io/component=node-agent"


async def devices(session: Session, output: Output) -> None:
    """Print the GPUs."""
    objects = await session.api.list(GPUS)
    if output in (Output.JSON, Output.YAML):
        session.screen.data(listed(objects), output)
        return
    show(session.screen, gpus_of(objects), wide=output is Output.WIDE)


def show(screen: Screen, gpus: Sequence[Gpu], *, wide: bool = False) -> None:
    """Print a table of GPUs, in a terminal with a line that sums it up."""
    if not gpus:
        screen.line(NONE_KNOWN)
        return
    # Most clusters have none, and the width is dear.
    strangers = any(size_of(gpu.status.memory.foreign) for gpu in gpus)
    columns = [
        Column("NODE", least=8),
        Column("#" if screen.terminal else "INDEX", right=True),
        Column("DEVICE"),
        Column("DESCRIPTION", least=16, ample=20),
        Column("TYPE", drop=3),
        Column("MEMORY", right=True, drop=1),
        Column("FREE", right=True),
        Column("RESERVED", right=True, drop=2),
        *([Column("FOREIGN", right=True)] if strangers else []),
        Column("READY", quiet="yes"),
        Column("DEPLOYMENTS", least=12),
    ]
    if wide:
        columns += [
            Column(title) for title in ("PCI", "UUID", "BACKENDS", "DRIVER", "COMPUTE", "BANDWIDTH", "PCIE", "NUMA")
        ]
    rows = [_row(gpu, short=screen.terminal and not wide, wide=wide, strangers=strangers) for gpu in gpus]
    screen.table(columns, rows, whole=wide)
    if screen.terminal:
        screen.line()
        screen.line(summary(gpus))


def _row(gpu: Gpu, *, short: bool, wide: bool, strangers: bool) -> Row:
    status, memory = gpu.status, gpu.status.memory
    reserved, foreign = size_of(memory.reserved), size_of(memory.foreign)
    row: list[Cell | str] = [
        status.node,
        NOT_OFFLOADED if status.index is None else str(status.index),
        Cell(status.name, "bold"),
        model_of(status.description) if short else status.description,
        status.type.value,
        size(size_of(memory.total)),
        size(size_of(memory.free)),
        size(reserved) if reserved else "",
        *([Cell(size(foreign) if foreign else "", "yellow")] if strangers else []),
        Cell("yes", "green") if gpu.ready else Cell(f"no: {gpu.why_not}", "red"),
        Cell(", ".join(status.deployments), "cyan"),
    ]
    if wide:
        bandwidth = f"{status.memory_bandwidth / 1e9:.0f} GB/s" if status.memory_bandwidth else ""
        row += [status.pci_id or "", status.uuid or "", ", ".join(status.backends), status.driver or ""]
        numa = status.bus.numa_node if status.bus else None
        row += [status.compute_capability or "", bandwidth, _link(gpu), "" if numa is None else str(numa)]
    return row


def _link(gpu: Gpu) -> str:
    """Say how a card is connected, and what it could be in a better slot: 4.0 x8 of 4.0 x16."""
    pcie = gpu.status.bus.pcie if gpu.status.bus else None
    if pcie is None:
        return ""
    now, most = (
        f"{generation or '?'}.0 x{width or '?'}"
        for generation, width in ((pcie.generation, pcie.width), (pcie.max_generation, pcie.max_width))
    )
    return now if now == most else f"{now} of {most}"


NOT_OFFLOADED = ""
"""Shown as the index of a device that llama.cpp would not offload to."""


def summary(gpus: Sequence[Gpu]) -> str:
    """Sum the fleet up in a line."""
    discrete = [gpu for gpu in gpus if gpu.status.type == "Discrete"]
    ready = sum(gpu.ready for gpu in gpus)
    nodes = len({gpu.status.node for gpu in gpus})
    state = "all ready" if ready == len(gpus) else f"{ready} ready"
    total = sum(size_of(gpu.status.memory.total) or 0 for gpu in discrete)
    free = sum(size_of(gpu.status.memory.free) or 0 for gpu in discrete)
    memory = f" {size(free)} of {size(total)} of discrete memory is free." if discrete else ""
    return clean(f"{plural(len(gpus), 'GPU')} on {plural(nodes, 'node')}, {state}.{memory}")
