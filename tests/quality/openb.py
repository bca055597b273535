"""Reads the format of Alibaba's public trace cluster-trace-gpu-v2023 ("openb"): two CSV files, of nodes and of pods.

There a GPU is 1000 thousandths, whatever its model; here a thousandth is one MiB of a GPU of 1000 MiB. Only pods that
want one GPU or a part of one are read: the others are no model on one card.
"""

from __future__ import annotations

import csv
import random
from typing import TYPE_CHECKING

from paddock.api.selector import DeviceSelector
from paddock.core.fleet import AUTO, Fleet, Node
from paddock.core.request import Request
from support.builders import MIB, device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paddock.core.fleet import Device

WHOLE = 1000
NODES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
PODS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")


def read_nodes(path: Path) -> Fleet:
    """Give the fleet of a file of nodes; those without a GPU are passed over."""
    nodes: dict[str, Node] = {}
    devices: list[Device] = []
    for row in _rows(path, NODES):
        for number in range(int(row["gpu"] or 0)):
            nodes[row["sn"]] = Node(row["sn"], memory=int(row["memory_mib"]) * MIB)
            devices.append(
                device(
                    f"{row['sn']}-{number}",
                    node=row["sn"],
                    description=row["model"],
                    total=WHOLE * MIB,
                    free=None,
                    index=number,
                )
            )
    return Fleet(nodes, tuple(devices), host_budget=AUTO)


def read_pods(path: Path) -> list[tuple[str, Request]]:
    """Give what each pod of one GPU or less asks for, by its name, in the order of the file."""
    out = []
    for row in _rows(path, PODS):
        if int(row["num_gpu"] or 0) == 1:
            models = [one for one in (row["gpu_spec"] or "").split("|") if one]
            request = Request(
                need=int(row["gpu_milli"]) * MIB,
                host_need=int(row["memory_mib"]) * MIB,
                selector=DeviceSelector(names=models) if models else None,
            )
            out.append((row["name"], request))
    return out


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = set(columns) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path.name} lacks the columns {', '.join(sorted(missing))}")
        yield from reader


def write_synthetic(folder: Path) -> None:
    """Write a small trace in this format: made up, with the mix of sizes of serving and training pods."""
    chance = random.Random(2023)  # noqa: S311 no secret
    kinds = (("T4", 4, 393_216), ("V100M16", 8, 393_216), ("G2", 8, 786_432), ("P100", 2, 262_144), ("A10", 1, 131_072))
    nodes = [(f"made-up-node-{n:04}", *chance.choice(kinds)) for n in range(24)]
    with (folder / "openb_node_list_synthetic.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(NODES)
        out.writerows((name, 96_000, memory, count, model) for name, model, count, memory in nodes)
    with (folder / "openb_pod_list_synthetic.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*PODS, "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"))
        for number in range(360):
            count = chance.choices((0, 1, 2, 8), (12, 84, 3, 1))[0]
            whole = chance.random() < 0.5
            milli = (
                0
                if not count
                else WHOLE
                if count > 1 or whole
                else chance.choice((50, 100, 200, 250, 330, 460, 500, 700, 810))
            )
            models = chance.choice(("", "", "", "", "", "", "V100M16|G2", "T4")) if count else ""
            start = number * 60
            times = (start, start + chance.randint(60, 6000), start + chance.randint(0, 5))
            memory = chance.choice((4096, 8192, 16_384, 32_768))
            out.writerow((f"made-up-pod-{number:04}", 4000, memory, count, milli, models, "LS", "Running", *times))
