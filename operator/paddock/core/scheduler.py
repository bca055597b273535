"""llama.cpp's scheduler of graphs over a device and the CPU (ggml-backend.cpp and ggml-alloc.c of build 11434).

It says which of the two computes an operation, copies what the other one needs, and allocates. Only sizes count here:
the result is what both compute buffers need at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from paddock.core.allocator import ALIGNMENT, Allocator, aligned

DEVICE, HOST, NOWHERE = 0, 1, -1
UNKNOWN: Final = -1
"""Size of a tensor that nobody should have to allocate or copy."""

VIEW, PLAIN, IN_PLACE, WEIGHTLESS, ROPE = "v", "o", "i", "f", "r"
"""Kinds of operations: no computation; any; one that may take over the memory of a source; one that is not drawn to
its weights; one of both kinds."""
INPUT, LEAF = "I", "L"
"""Kinds of tensors that nothing computes: those that the host fills, and others."""


class Operation(NamedTuple):
    """One tensor of a graph, by the numbers of others."""

    kind: str
    output: bool
    """Its memory is never given back."""
    view: int
    """The tensor whose memory it looks at; NOWHERE when it has its own."""
    sources: tuple[int, ...]
    alike: tuple[bool, ...]
    """Of each source: whether it has the same type, shape and strides."""


@dataclass
class Graph:
    """Tensors in order of computation; weights and caches have their place, all others a size."""

    operations: list[Operation | None] = field(default_factory=list)
    """By number; None is a tensor with a place of its own."""
    places: list[int] = field(default_factory=list)
    """By number: DEVICE, HOST or NOWHERE."""
    weights: list[bool] = field(default_factory=list)
    """By number: whether it is a weight, which draws operations to its place."""
    sizes: list[int] = field(default_factory=list)
    """By number: bytes."""
    leaves: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    """Operations that graphs of few tokens compute in the place of their layer."""
    fused: list[tuple[int, int]] = field(default_factory=list)
    """Operations of FlashAttention, with the place of their layer."""

    def outside(self, place: int, size: int, *, weight: bool) -> int:
        """Add a tensor that lies in another buffer; gives its number."""
        self.places.append(place)
        self.weights.append(weight)
        self.sizes.append(size)
        self.operations.append(None)
        return len(self.places) - 1

    def add(self, operation: Operation, size: int) -> int:
        """Add a tensor; gives its number."""
        number = self.outside(NOWHERE, size, weight=False)
        self.operations[number] = operation
        (self.leaves if operation.kind in (INPUT, LEAF) else self.nodes).append(number)
        return number


class Step(NamedTuple):
    """One step of the allocator."""

    place: int
    number: int
    """Of the tensor whose size counts."""
    block: int
    """What is given back, counted from the first that was taken; NOWHERE for one that is taken."""


class Plan(NamedTuple):
    """What the allocator does with a graph; it depends on no size."""

    steps: tuple[Step, ...]
    copies: tuple[int, ...]
    """Tensors that are copied to the other place; the copies are numbered after all tensors of the graph."""


def peaks(graph: Graph, alignment: int = ALIGNMENT, *, few: bool = False) -> tuple[int, int]:
    """Give the bytes of the compute buffers on the device and on the host; alignment is the device's, in bytes.

    few says that the graph is of few tokens. Raises KeyError when a tensor of unknown size would have to be allocated.
    """
    return replayed(planned(graph, few=few), graph.sizes, alignment)


def planned(graph: Graph, *, few: bool = False) -> Plan:
    """Give what the allocator does."""
    schedule = _Schedule(graph, few=few)
    steps = list(schedule.split())
    return Plan(tuple(_Allocation(schedule, steps).run()), tuple(schedule.copied))


def replayed(plan: Plan, sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[int, int]:
    """Give the same as peaks, for a graph's plan and the bytes of its tensors by number."""
    every = [*sizes, *(sizes[one] for one in plan.copies)]
    allocators, alignments = (Allocator(), Allocator()), (alignment, ALIGNMENT)
    offsets: list[int] = []
    for place, number, block in plan.steps:
        size = every[number]
        if size == UNKNOWN:
            raise KeyError(number)
        size = aligned(size, alignments[place])
        if block == NOWHERE:
            offsets.append(allocators[place].take(size))
        else:
            allocators[place].give(offsets[block], size)
    return allocators[DEVICE].peak, allocators[HOST].peak


def flash_stays(graph: Graph) -> bool:
    """Say whether every layer's FlashAttention is computed where the layer is; else llama.cpp does without it."""
    at = _Schedule(graph, few=True).at
    return all(at[number] == place for number, place in graph.fused)


class _Schedule:
    """ggml_backend_sched_split_graph for one device before the CPU."""

    def __init__(self, graph: Graph, *, few: bool) -> None:
        self.graph = graph
        self.at = list(graph.places)
        if few:
            for number, place in graph.held:
                self.at[number] = place
        self.operations = list(graph.operations)
        self.copied: list[int] = []
        self.computed = [number for number in graph.nodes if self._operation(number).kind != VIEW]
        self._assign()
        self._expand(self.computed, skip=HOST)
        self._expand(self.computed[::-1], skip=HOST)
        self._expand(self.computed, skip=NOWHERE)
        self._expand(self.computed[::-1], skip=NOWHERE)
        self._settle()

    def _operation(self, number: int) -> Operation:
        operation = self.operations[number]
        assert operation is not None  # noqa: S101 - only tensors outside have none
        return operation

    def _assign(self) -> None:
        """Give a place to what is drawn to one: inputs, views of what lies in a buffer, users of weights."""
        graph, at = self.graph, self.at
        for number in (*graph.leaves, *graph.nodes):
            operation = self._operation(number)
            if at[number] != NOWHERE:
                continue
            if operation.kind == INPUT:
                at[number] = HOST
            elif operation.view >= 0 and self.operations[operation.view] is None:
                at[number] = at[operation.view]
            elif operation.kind not in (WEIGHTLESS, ROPE):
                weight = next((source for source in operation.sources if graph.weights[source]), NOWHERE)
                if weight >= 0:
                    at[number] = at[weight]

    def _expand(self, order: Sequence[int], skip: int) -> None:
        """Let neighbours be computed where a computation is; first only on the device."""
        at, current = self.at, NOWHERE
        for number in order:
            place = at[number]
            if place != NOWHERE:
                current = NOWHERE if place == skip else place
            elif current != NOWHERE:
                at[number] = current

    def _settle(self) -> None:
        """Give views and sources their place."""
        at = self.at
        for number in self.graph.nodes:
            operation = self._operation(number)
            if at[number] == NOWHERE and operation.view >= 0:
                at[number] = at[operation.view]
            for source in operation.sources:
                if at[source] == NOWHERE:
                    own = self.operations[source]
                    at[source] = at[own.view] if own is not None and own.view >= 0 else at[number]
            if at[number] == NOWHERE:
                at[number] = DEVICE

    def split(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Give all tensors in order with their sources; copies to the other place come before what they are for."""
        at, copies = self.at, {}
        waiting: list[tuple[int, Sequence[int]]] = []
        inputs: list[tuple[int, Sequence[int]]] = []
        current = at[self.computed[0]] if self.computed else HOST
        for number in self.graph.nodes:
            operation = self._operation(number)
            sources: Sequence[int] = operation.sources
            if operation.kind != VIEW:
                if at[number] != current or (inputs and self._new_weight(operation, current)):
                    yield from (*inputs, *waiting)
                    inputs, waiting, current = [], [], at[number]
                changed = list(sources)
                for position, source in enumerate(sources):
                    if at[source] != current:
                        if (source, current) not in copies:
                            copies[source, current] = self._copy(source, current)
                            inputs += [(NOWHERE, (source,)), (copies[source, current], ())]
                        changed[position] = copies[source, current]
                sources = changed
            waiting.append((number, sources))
        yield from (*inputs, *waiting)

    def _new_weight(self, operation: Operation, current: int) -> bool:
        return any(self.graph.weights[source] and self.at[source] != current for source in operation.sources)

    def _copy(self, source: int, place: int) -> int:
        self.at.append(place)
        self.copied.append(source)
        self.operations.append(_COPY)
        return len(self.at) - 1


_COPY: Final = Operation(PLAIN, output=False, view=NOWHERE, sources=(), alike=())


class _Allocation:
    """ggml_gallocr_alloc_graph_impl."""

    def __init__(self, schedule: _Schedule, order: list[tuple[int, Sequence[int]]]) -> None:
        count = len(schedule.at)
        self.schedule, self.order, self.operations = schedule, order, schedule.operations
        self.children, self.views, self.own = [0] * count, [0] * count, [False] * count
        self.blocks = [NOWHERE] * count
        self.places: list[int] = []
        """By block."""
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        at = self.schedule.at
        for leaf in self.schedule.graph.leaves:
            self._allocate(leaf, at[leaf])
        for number, sources in self.order:
            operation = self.operations[number] if number >= 0 else None
            if operation is not None and operation.view >= 0:
                self.views[operation.view] += 1
            for source in sources:
                self.children[source] += 1
        for number, sources in self.order:
            for source in sources:
                self._allocate(source, at[source if number < 0 else number])
            if number >= 0:
                self._allocate(number, at[number], sources)
            for source in sources:
                self._release(source)
        return self.steps

    def _allocate(self, number: int, place: int, sources: Sequence[int] = ()) -> None:
        operation = self.operations[number]
        if self.own[number] or operation is None or operation.view >= 0:
            return
        self.own[number] = True
        if operation.kind in (IN_PLACE, ROPE):
            for source, alike in zip(sources, operation.alike, strict=True):
                if alike and self._free_for_one(source):
                    self.own[source] = False
                    self.blocks[number] = self.blocks[source]
                    return
        self.blocks[number] = len(self.places)
        self.places.append(place)
        self.steps.append(Step(place, number, NOWHERE))

    def _free_for_one(self, source: int) -> bool:
        operation = self.operations[source]
        output = operation is not None and operation.output
        return self.own[source] and not output and self.children[source] == 1 and not self.views[source]

    def _release(self, number: int) -> None:
        children, views = self.children, self.views
        children[number] -= 1
        if children[number] or views[number]:
            return
        operation = self.operations[number]
        if operation is None:
            return
        seen = operation.view
        if seen >= 0:
            views[seen] -= 1
            if not views[seen] and not children[seen] and self.own[seen]:
                self._give_back(seen)
        elif self.own[number]:
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        operation = self.operations[number]
        if operation is None or operation.output:
            return
        self.own[number] = False
        block = self.blocks[number]
        self.steps.append(Step(self.places[block], number, block))
