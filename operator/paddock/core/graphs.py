"""Replays llama.cpp's allocator over the graph of a model: the exact size of a compute buffer.

The graphs are no code but templates, derived from what llama.cpp (build 11434) builds for small models of every
architecture (tests/estimate/derive): the allocations and releases before the layers, in each kind of layer, and after
them, with every size as an expression of the model's and the options' numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from paddock.api.report import GraphOutline, HeaderSummary
from paddock.core import architectures as known
from paddock.core.allocator import ALIGNMENT, Allocator, aligned
from paddock.core.geometry import Geometry, Options, flash_attention, pooling_of
from paddock.core.ggml import ELEMENTS
from paddock.core.outline import all_layer_keys, model_key, outside_keys, signatures
from paddock.core.sizes import atoms, evaluate

DEVICE, HOST = 0, 1
_BOUNDED: Final = 64
"""Rotations of quantized caches are made for heads that are a multiple of this (src/llama-kv-cache.cpp:322-338)."""
_NOT_ROTATED: Final = "fqnn"

EMBEDDINGS: Final = {"none": "e", "mean": "em", "cls": "ec", "last": "ec", "rank": "er"}
"""End of the name of a class of graphs; one token of each input is taken in the same way wherever it stands."""


class Operation(NamedTuple):
    """One step of the allocator."""

    what: str
    """+ allocate, - give an own block back, u use a block of the prologue's, x give a carried block back."""
    number: int
    """Which block; for an allocation the place."""
    size: tuple[int, tuple[str, ...]]
    """Of an allocation: the element type and the dimensions."""


class Body(NamedTuple):
    """The steps of a part of the graph, and which blocks later parts still need."""

    steps: tuple[Operation, ...]
    leaving: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Templates:
    """All bodies, and which of them make the graph of an architecture in a class of options."""

    build: int
    """llama.cpp's."""
    bodies: tuple[str, ...]
    graphs: dict[str, dict[str, dict[str, Any]]]
    names: dict[str, list[str]]
    """By architecture the signatures of tensors that its graphs were seen with."""
    left_out: dict[str, dict[str, list[str]]]
    """By architecture and class of options: kinds of models whose graph did not agree with llama.cpp's; * is all."""

    def find(self, architecture: str, graph: str, keys: Iterable[str], names: Sequence[str]) -> tuple[int, bool] | None:
        """Give the body of the first key that is known, and whether these names of tensors were seen with it."""
        table = self.graphs.get(architecture, {}).get(graph, {})
        seen = bool(set(names) & set(self.names.get(architecture, ())))
        for key in keys:
            entry = table.get(key)
            if isinstance(entry, int):
                return entry, seen
            if entry is not None:
                for name in (*names, "*"):
                    if name in entry:
                        return int(entry[name]), name != "*"
        return None


class ComputeSizes(NamedTuple):
    """Bytes of the compute buffers."""

    device: int
    host: int
    sure: bool
    """Every part of the graph was seen with tensors of these names."""


@lru_cache(maxsize=512)
def parse_body(text: str) -> Body:
    """Parse `+d,0,E,T -3 u2 x0 | -1`: steps, then what leaves."""
    steps, _, leaving = text.partition("|")
    return Body(tuple(_step(word) for word in steps.split()), tuple((w[0], int(w[1:])) for w in leaving.split()))


def _step(word: str) -> Operation:
    if word[0] != "+":
        return Operation(word[0], int(word[1:]), (0, ()))
    place, kind, *dimensions = word[1:].split(",")
    return Operation("+", DEVICE if place == "d" else HOST, (int(kind), tuple(dimensions)))


def graph_class(summary: HeaderSummary, options: Options) -> str:
    """Name what decides over the structure of a graph beside the model."""
    flash = flash_attention(summary, options)
    name = "f" if flash else "v" if options.flash_attention == "given up" else "n"
    if options.quantized:
        rotated = summary.key_length % _BOUNDED == 0, summary.value_length % _BOUNDED == 0
        name += "q" + "".join("rn"[not flag] for flag in rotated)
    name += "1" if options.parallel == 1 else "u" if options.kv_unified else "s"
    if summary.architecture in known.WINDOWS and not any(summary.sliding_layers):
        name += "p"  # every layer sees everything, which files of this architecture need not say
    return name + (EMBEDDINGS[pooling_of(summary, options)] if options.embeddings else "")


def recorded_class(summary: HeaderSummary, options: Options, templates: Templates) -> str:
    """Name the class whose templates hold: a quantized cache whose heads are not rotated has the graph of a plain one.

    That was compared for all architectures that both were recorded of; those with state differ in places.
    """
    name, own = graph_class(summary, options), templates.graphs.get(summary.architecture, {})
    if name in own or not name.startswith(_NOT_ROTATED) or summary.recurrent:
        return name
    return "f" + name.removeprefix(_NOT_ROTATED)


def compute_sizes(
    summary: HeaderSummary, options: Options, geometry: Geometry, templates: Templates, alignment: int = ALIGNMENT
) -> ComputeSizes | None:
    """Give the sizes with the device's alignment in bytes; None when a part of the graph is unknown."""
    outline = summary.graph
    if outline is None or not outline.layers:
        return None
    graph = recorded_class(summary, options, templates)
    excluded = templates.left_out.get(summary.architecture, {}).get(graph, [])
    if "*" in excluded or model_key(outline) in excluded:
        return None
    parts = parts_of(summary, outline, graph, templates)
    if parts is None:
        return None
    numbers = [atoms(summary, geometry, None), *(atoms(summary, geometry, kind) for kind in outline.kinds)]
    try:
        device, host = _Replay(parts, numbers, templates, alignment).run()
    except (KeyError, IndexError):
        return None
    return ComputeSizes(device, host, all(part.seen for part in parts))


class Part(NamedTuple):
    """One part of the graph of a model."""

    body: int
    """Number of its template."""
    kind: int
    """Which kind of layer, from 1; 0 is outside the layers."""
    seen: bool
    """Whether tensors of these names were seen with it."""


def parts_of(summary: HeaderSummary, outline: GraphOutline, graph: str, templates: Templates) -> list[Part] | None:
    """Give the bodies in order; None when one is not known."""
    names = [signatures(outline.shapes), *(signatures(kind.shapes) for kind in outline.kinds)]
    keys = [outside_keys("P", outline), *all_layer_keys(outline), outside_keys("Z", outline)]
    kinds = [0, *(kind + 1 for kind in outline.layers), 0]
    found: dict[tuple[str, str, int], tuple[int, bool] | None] = {}
    parts = []
    for own, kind in zip(keys, kinds, strict=True):
        sought = own[max(len(own) - 2, 0)], own[-1], kind  # the two longest names tell all that decides
        if sought not in found:
            found[sought] = templates.find(summary.architecture, graph, own, names[kind])
        body = found[sought]
        if body is None:
            return None
        parts.append(Part(body[0], kind, body[1]))
    return parts


class _Replay:
    """Runs the bodies one after the other; equal states are not computed twice."""

    def __init__(self, parts: list[Part], numbers: list[dict[str, int]], templates: Templates, alignment: int) -> None:
        self.parts = parts
        self.numbers = numbers
        self.alignments = (alignment, ALIGNMENT)
        self.bodies = {part.body: parse_body(templates.bodies[part.body]) for part in parts}
        self.sizes: dict[tuple[int, int], list[int]] = {}
        self.known: list[dict[str, int]] = [{} for _ in numbers]
        self.allocators = (Allocator(), Allocator())
        self.first: list[tuple[int, int, int]] = []
        self.carried: list[tuple[int, int, int]] = []

    def run(self) -> tuple[int, int]:
        final = self._last_uses()
        seen: dict[Any, Any] = {}
        for position, part in enumerate(self.parts):
            key = (part.body, part.kind, final[position], *(one.state() for one in self.allocators), *self.carried)
            if key in seen:
                states, carried = seen[key]
                for allocator, state in zip(self.allocators, states, strict=True):
                    allocator.restore(state)
                self.carried = carried
                continue
            self._play(position, part, final[position])
            seen[key] = tuple(one.state() for one in self.allocators), self.carried
        return self.allocators[DEVICE].peak, self.allocators[HOST].peak

    def _last_uses(self) -> list[frozenset[int]]:
        """Give for each part the blocks of the prologue that it is the last to use."""
        uses = {name: {one.number for one in body.steps if one.what == "u"} for name, body in self.bodies.items()}
        seen: set[int] = set()
        found = []
        for part in reversed(self.parts):
            used = uses[part.body]
            found.append(frozenset(used - seen))
            seen |= used
        return found[::-1]

    def _play(self, position: int, part: Part, final: frozenset[int]) -> None:
        body, sizes = self.bodies[part.body], self._sizes(part)
        own: list[tuple[int, int, int]] = []
        for step in body.steps:
            if step.what == "+":
                size = sizes[len(own)]
                own.append((step.number, self.allocators[step.number].take(size), size))
            elif step.what == "-":
                self._give(own[step.number])
            elif step.what == "x":
                self._give(self.carried[step.number])
            elif step.number in final:
                self._give((self.first or own)[step.number])
        if position == 0:
            self.first = own
        sources = {"x": self.carried, "-": own}
        self.carried = [sources[what][number] for what, number in body.leaving]

    def _give(self, block: tuple[int, int, int]) -> None:
        place, offset, size = block
        self.allocators[place].give(offset, size)

    def _sizes(self, part: Part) -> list[int]:
        key = part.body, part.kind
        if key not in self.sizes:
            numbers, cache = self.numbers[part.kind], self.known[part.kind]
            self.sizes[key] = [
                aligned(_bytes(step.size, numbers, cache), self.alignments[step.number])
                for step in self.bodies[part.body].steps
                if step.what == "+"
            ]
        return self.sizes[key]


def _bytes(size: tuple[int, tuple[str, ...]], numbers: dict[str, int], cache: dict[str, int]) -> int:
    kind, dimensions = size
    total = 1
    for position, expression in enumerate(dimensions):
        value = cache.get(expression)
        if value is None:
            value = cache[expression] = evaluate(expression, numbers)
        total *= value if position else ELEMENTS[kind].row(value)
    return total
