"""Cuts the trace of a graph into what comes before the layers, the layers, and what comes after them."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from estimate.derive.graph import Event, Graph, Tensor, trace

_LAYER: Final = re.compile(r"(?:-|_l)(\d+)(?: \(|$)")
DEVICE: Final = "d"


@dataclass
class Segment:
    """Operations in order.

    `+d` allocates, `-3` frees the fourth own block, `u2` uses one of the prologue's, `x0` frees a carried one.
    """

    shape: tuple[str, ...]
    """Operations without sizes."""
    leaving: tuple[str, ...]
    """What later segments still need: own (`-3`) or carried (`x0`), oldest first."""
    sizes: list[tuple[Tensor, str | None]] = field(default_factory=list)
    """For each allocation its tensor, and the weight that a product is with."""
    sources: list[tuple[int, ...]] = field(default_factory=list)
    """For each of a graph's tensors those of the same segment that it is computed from."""
    weights: frozenset[str] = frozenset()
    """Names of the weights that are used; nothing else of the model is sure to be there."""


class IrregularError(Exception):
    """The graph has no layers one after the other."""


class _Blocks(NamedTuple):
    born: dict[int, tuple[int, int]]
    """Segment and number in it of the allocation."""
    ends: dict[int, int]
    """Segment of the release."""
    last: dict[tuple[int, int], int]
    """Event of the last use, by segment and block."""


def layer_of(name: str) -> int | None:
    """Give the layer that a tensor's name says."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def positions(graph: Graph, layers: int) -> list[int]:
    """Give for each node its segment: 0 before the layers, layer + 1, layers + 1 after them."""
    labels: list[int | None] = []
    for number, _ in graph.nodes:
        tensor = graph.tensors[number]
        labels.append(None if "#" in tensor.name else layer_of(tensor.name))
    found = [layers + 1] * len(labels)
    latest = layers + 1
    for index in range(len(labels) - 1, -1, -1):
        label = labels[index]
        if label is not None and label < layers:
            latest = min(latest, label + 1)
        found[index] = latest
    start = next((index for index, place in enumerate(found) if place >= 1), 0)
    first = next((i for i, label in enumerate(labels) if label == 0), None)
    if first is None:
        raise IrregularError("no first layer")
    # what stands before the first node that reads the first layer's weights is no part of it
    opening = first
    while opening > start and not _is_split(graph, opening - 1):
        opening -= 1
    for index in range(opening):
        found[index] = 0
    return found


def _is_split(graph: Graph, index: int) -> bool:
    return "#" in graph.tensors[graph.nodes[index][0]].name


def segments(graph: Graph, layers: int) -> list[Segment]:
    """Cut the trace; raises IrregularError."""
    events, place = trace(graph), positions(graph, layers)
    at = [place[event.node] if event.node >= 0 else 0 for event in events]
    born: dict[int, tuple[int, int]] = {}
    count: dict[int, int] = defaultdict(int)
    ends = {event.block: at[index] for index, event in enumerate(events) if event.what == "-"}
    last: dict[tuple[int, int], int] = {}
    for index, event in enumerate(events):
        if event.what == "+":
            born[event.block] = (at[index], count[at[index]])
            count[at[index]] += 1
        elif event.what == "t":
            last[at[index], event.block] = index
    blocks = _Blocks(born, ends, last)
    groups: list[list[tuple[int, Event]]] = [[] for _ in range(layers + 2)]
    for index, event in enumerate(events):
        groups[at[index]].append((index, event))
    carried: list[int] = []
    found = []
    used: list[set[str]] = [set() for _ in range(layers + 2)]
    for (node, _), own in zip(graph.nodes, place, strict=True):
        used[own] |= weights_of(graph, node)
    for number, group in enumerate(groups):
        if not group:
            raise IrregularError(f"segment {number} is empty")
        segment, carried = _segment(graph, number, group, blocks, carried)
        segment.weights = frozenset(used[number])
        found.append(segment)
    return found


def weights_of(graph: Graph, node: int) -> set[str]:
    """Name the weights that a node is computed from, without their layer."""
    seen = (graph.tensors[one] for one in (*graph.tensors[node].sources, graph.tensors[node].view) if one >= 0)
    return {_stem(tensor.name) for tensor in seen if tensor.external}


def _stem(name: str) -> str:
    return re.sub(r"^blk\.\d+\.", "", name.removesuffix(".weight"))


def _segment(
    graph: Graph,
    number: int,
    group: list[tuple[int, Event]],
    blocks: _Blocks,
    carried: list[int],
) -> tuple[Segment, list[int]]:
    shape, sizes = [], []
    born, ends, last = blocks
    for index, event in group:
        origin, own = born[event.block]
        if event.what == "+":
            shape.append("+" + (DEVICE if event.place == 0 else "h"))
            sizes.append((graph.tensors[event.tensor], product_weight(graph, event.tensor)))
        elif event.what == "-" and origin == number:
            shape.append(f"-{own}")
        elif event.what == "-" and origin > 0:
            shape.append(f"x{carried.index(event.block)}")
        elif event.what == "t" and origin == 0 and last[number, event.block] == index and ends.get(event.block, -1) > 0:
            shape.append(f"u{own}")
    leaving = [block for block in carried if ends[block] > number]
    fresh = sorted(
        (own, block) for block, (origin, own) in born.items() if origin == number and ends.get(block, -1) > number
    )
    names = [f"x{carried.index(block)}" for block in leaving]
    if number:
        names += [f"-{own}" for own, _ in fresh]
        leaving += [block for _, block in fresh]
    return Segment(tuple(shape), tuple(names), sizes), leaving


def product_weight(graph: Graph, number: int) -> str | None:
    """Name the weight that a matrix product is with, without its layer."""
    tensor = graph.tensors[number]
    if not tensor.op.startswith("MUL_MAT") or not tensor.sources:
        return None
    source = graph.tensors[tensor.sources[0]]
    if not source.external:
        return None
    return _stem(source.name)
