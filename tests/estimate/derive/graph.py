"""A graph that llama.cpp's scheduler handed to its allocator, and the trace of what the allocator does with it.

The rules are those of ggml-alloc.c (build 11434): leaves first, then inputs, then node by node; a node takes over the
memory of a source of the same layout that nothing else needs; memory is given back after the last use.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

INPUT, OUTPUT = 1, 2
IN_PLACE: Final = frozenset(
    {
        "FILL", "SCALE", "DIAG_MASK_ZERO", "DIAG_MASK_INF", "ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SQR", "SQRT",
        "LOG", "UNARY", "ROPE", "ROPE_BACK", "SILU_BACK", "RMS_NORM", "RMS_NORM_BACK", "CLAMP", "SOFT_MAX",
        "SOFT_MAX_BACK",
    }
)  # fmt: skip
"""ggml_op_can_inplace."""
UNARY: Final = frozenset(
    {
        "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH",
        "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
    }
)  # fmt: skip
"""ggml_op_desc gives these instead of UNARY."""


class Tensor(NamedTuple):
    """One tensor as recorded."""

    name: str
    op: str
    type: int
    bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int
    external: bool
    view: int
    offset: int
    sources: tuple[int, ...]


@dataclass
class Graph:
    """Tensors by number; leaves and nodes with the place (0 device, last host) they are for."""

    sizes: tuple[int, int]
    leaves: list[tuple[int, int]]
    nodes: list[tuple[int, int]]
    tensors: list[Tensor]


def read_graph(line: str) -> Graph:
    """Parse what record.c wrote."""
    found: dict[str, Any] = json.loads(line)
    tensors = [
        Tensor(name, op, kind, size, tuple(ne), tuple(nb), flags, bool(external), view, offset, tuple(sources))
        for name, op, kind, size, ne, nb, flags, external, view, offset, sources in found["tensors"]
    ]
    pairs = {key: [(number, place) for number, place in found[key]] for key in ("leafs", "nodes")}
    return Graph((found["sizes"][0], found["sizes"][1]), pairs["leafs"], pairs["nodes"], tensors)


class Event(NamedTuple):
    """A step of the allocator; `block` numbers what is allocated, `tensor` is what it is for, `node` the time."""

    what: str
    """+ allocate, t a use that ended, - give back."""
    place: int
    block: int
    tensor: int
    node: int
    """Position in the graph's nodes; -1 before the first."""


class _Tracer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        count = len(graph.tensors)
        self.children, self.views, self.own = [0] * count, [0] * count, [False] * count
        self.block: list[tuple[int, int] | None] = [None] * count
        self.events: list[Event] = []
        self.blocks = 0
        self.now = -1

    def run(self) -> list[Event]:
        graph, tensors = self.graph, self.graph.tensors
        for number, place in graph.leaves:
            self.allocate(number, place)
        for number, place in graph.nodes:
            node = tensors[number]
            if node.view >= 0 and node.op != "NONE":
                self.views[node.view] += 1
            if node.flags & INPUT:
                self.allocate(number, place)
            for source in node.sources:
                self.children[source] += 1
                if tensors[source].flags & INPUT:
                    self.allocate(source, place)
        for position, (number, place) in enumerate(graph.nodes):
            self.now = position
            for source in tensors[number].sources:
                self.allocate(source, place)
            self.allocate(number, place)
            for source in tensors[number].sources:
                self.release(source)
        return self.events

    def allocate(self, number: int, place: int) -> None:
        tensor = self.graph.tensors[number]
        if tensor.external or self.own[number] or tensor.view >= 0:
            return
        self.own[number] = True
        if (tensor.op in IN_PLACE or tensor.op in UNARY) and self.take_over(number):
            return
        self.block[number] = (place, self.blocks)
        self.events.append(Event("+", place, self.blocks, number, self.now))
        self.blocks += 1

    def take_over(self, number: int) -> bool:
        tensors = self.graph.tensors
        for source in tensors[number].sources:
            parent = tensors[source]
            if not self.own[source] or parent.flags & OUTPUT or not same_layout(tensors[number], parent):
                continue
            if self.children[source] == 1 and self.views[source] == 0:
                self.block[number] = self.block[source]
                self.own[source] = False
                return True
        return False

    def release(self, number: int) -> None:
        self.children[number] -= 1
        view = self.graph.tensors[number].view
        held = self.block[view if view >= 0 else number]
        if held is not None:
            self.events.append(Event("t", held[0], held[1], number, self.now))
        if self.children[number] or self.views[number]:
            return
        tensor = self.graph.tensors[number]
        if tensor.view >= 0:
            self.views[tensor.view] -= 1
            if not self.views[tensor.view] and not self.children[tensor.view] and self.own[tensor.view]:
                self.give_back(tensor.view)
        elif self.own[number]:
            self.give_back(number)

    def give_back(self, number: int) -> None:
        if self.graph.tensors[number].flags & OUTPUT:
            return
        held = self.block[number]
        if held is None:
            return
        place, block = held
        self.own[number] = False
        self.events.append(Event("-", place, block, number, self.now))


def same_layout(one: Tensor, other: Tensor) -> bool:
    """ggml_are_same_layout."""
    return one.type == other.type and one.shape == other.shape and one.strides == other.strides


def trace(graph: Graph) -> list[Event]:
    """Give what the allocator does, in order."""
    return _Tracer(graph).run()
