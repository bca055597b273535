"""Makes the templates of graphs from recorded ones; see README.md beside this file."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from estimate.derive.graph import Graph, Tensor, read_graph
from estimate.derive.search import Search
from estimate.derive.segments import IrregularError, Segment
from estimate.derive.shapes import Shapes, is_rotation, matrix_of_keys, product
from estimate.options import options_of
from paddock.api.report import HeaderSummary
from paddock.core.geometry import Geometry, Options
from paddock.core.graphs import graph_class
from paddock.core.outline import all_layer_keys, outside_keys, signatures
from paddock.core.sizes import atoms


@dataclass
class Recording:
    """One graph of a model with options."""

    summary: HeaderSummary
    asked: dict[str, Any]
    line: str

    @property
    def options(self) -> Options:
        """What was asked, as the estimate takes it."""
        return options_of(self.asked)


@dataclass
class Part:
    """A segment of a recording, with the names it can be looked up by."""

    graph: str
    keys: list[str]
    names: tuple[str, str]
    segment: Segment
    numbers: dict[str, int]


Cut = Callable[[Graph, int], list[Segment]]


def parts_of(recording: Recording, cut: Cut) -> Iterator[Part]:
    """Cut a recording; raises IrregularError."""
    summary, outline = recording.summary, recording.summary.graph
    if outline is None:
        raise IrregularError("no outline")
    graph = graph_class(summary, recording.options)
    geometry = Geometry.of(summary, recording.options)
    count = len(outline.layers)
    numbers = {kind: atoms(summary, geometry, outline.kinds[kind]) for kind in set(outline.layers)}
    outside, keys = atoms(summary, geometry, None), all_layer_keys(outline)
    for position, segment in enumerate(cut(read_graph(recording.line), count)):
        if 0 < position <= count:
            kind = outline.layers[position - 1]
            names = signatures(outline.kinds[kind].shapes)
            yield Part(graph, keys[position - 1], names, segment, numbers[kind])
        else:
            own = outside_keys("P" if position == 0 else "Z", outline)
            yield Part(graph, own, signatures(outline.shapes), segment, outside)


def names_of(recordings: list[Recording]) -> list[str]:
    """Give the signatures of the tensors of models that were recorded, small ones aside."""
    found = set()
    for recording in recordings:
        if recording.summary.graph is not None:
            found.add(signatures(recording.summary.graph.shapes)[1])
            found |= {signatures(kind.shapes)[1] for kind in recording.summary.graph.kinds}
    return sorted(found)


class Bodies:
    """All bodies, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Give the number of a body."""
        return self.numbers.setdefault(text, len(self.numbers))


Structure = tuple[tuple[str, ...], tuple[str, ...]]


Write = Callable[[Structure, list[Part]], str | None]


def derive(
    recordings: list[Recording], bodies: Bodies, cut: Cut, write: Write
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Give the table of an architecture, by class of graph and key, and what could not be derived."""
    groups: dict[tuple[str, Structure], list[Part]] = defaultdict(list)
    seen: dict[tuple[str, str], dict[Structure, list[Part]]] = defaultdict(lambda: defaultdict(list))
    trouble: list[str] = []
    for part in _marked(list(_parts(recordings, cut, trouble))):
        structure = (part.segment.shape, part.segment.leaving)
        groups[part.keys[0], structure].append(part)
        for key in part.keys:
            seen[part.graph, key][structure].append(part)
    texts: dict[tuple[str, Structure, str], str] = {}
    for (key, structure), parts in groups.items():
        texts |= {(key, structure, graph): text for graph, text in _texts(write, structure, parts, trouble, key)}
    table: dict[str, dict[str, Any]] = defaultdict(dict)
    done: set[tuple[str, str]] = set()
    for (graph, key), structures in seen.items():
        entry = _entry(graph, structures, texts, bodies)
        if entry is not None:
            table[graph][key] = entry
            done.add((graph, key))
    _prune(table, seen)
    return dict(table), trouble


def _parts(recordings: list[Recording], cut: Cut, trouble: list[str]) -> Iterator[Part]:
    for recording in recordings:
        try:
            yield from list(parts_of(recording, cut))
        except IrregularError as error:
            trouble.append(f"{graph_class(recording.summary, recording.options)}: {error}")


def _marked(parts: list[Part]) -> list[Part]:
    """Mark the place for what is early of the next layer also where the next layer has nothing early."""
    known: dict[Structure, set[Structure]] = defaultdict(set)
    for part in parts:
        if any(word.startswith("@") for word in part.segment.shape):
            structure = part.segment.shape, part.segment.leaving
            known[_unmarked(structure)].add(structure)
    first: dict[tuple[str, ...], Part] = {}
    for part in parts:
        found = known.get((part.segment.shape, part.segment.leaving), set())
        if len(found) == 1:
            part.segment.shape = next(iter(found))[0]
        if part.segment.shape and part.segment.shape[0].startswith("I#"):
            _order(part.segment, first.setdefault(tuple(sorted(part.segment.shape)), part).segment)
    return parts


def _order(segment: Segment, other: Segment) -> None:
    """Give inputs the order that they have in another graph: what is met first depends on the first layers."""
    rank = {word: index for index, word in enumerate(other.shape) if word.startswith("I#")}
    places = [index for index, word in enumerate(segment.shape) if word in rank]
    wanted = sorted(places, key=lambda index: rank[segment.shape[index]])
    shape, sizes = list(segment.shape), list(segment.sizes)
    for place, source in zip(places, wanted, strict=True):
        shape[place], sizes[place] = segment.shape[source], segment.sizes[source]
    segment.shape, segment.sizes = tuple(shape), sizes


def _unmarked(structure: Structure) -> Structure:
    return tuple(word.removeprefix("@") for word in structure[0]), structure[1]


def _entry(
    graph: str,
    structures: dict[Structure, list[Part]],
    texts: dict[tuple[str, Structure, str], str],
    bodies: Bodies,
) -> int | dict[str, int] | None:
    """Give the one body for a key, or one for each set of names; None when the names do not decide."""
    by_name: dict[str, set[int]] = defaultdict(set)
    every: set[int] = set()
    for structure, parts in structures.items():
        for part in parts:
            text = texts.get((part.keys[0], structure, graph))
            number = -1 if text is None else bodies.number(text)
            every.add(number)
            for name in part.names:
                by_name[name].add(number)
    if len(every) == 1:
        only = every.pop()
        return None if only < 0 else only
    if any(len(found) > 1 for name, found in by_name.items() if not name.startswith("~")):
        return None
    known = {name: next(iter(found)) for name, found in by_name.items() if len(found) == 1 and -1 not in found}
    likely = list(known.values())
    if likely:
        known["*"] = max(set(likely), key=lambda number: (likely.count(number), -number))
    return known


def _prune(table: dict[str, dict[str, Any]], seen: dict[tuple[str, str], Any]) -> None:
    """Leave out longer keys whose shorter one is known."""
    for graph, entries in table.items():
        for _, structures in ((key, found) for (one, key), found in seen.items() if one == graph):
            for parts in structures.values():
                for part in parts:
                    known = next((index for index, key in enumerate(part.keys) if key in entries), len(part.keys))
                    for key in set(part.keys[known + 1 :]) - set(part.keys[: known + 1]):
                        entries.pop(key, None)


def _texts(
    write: Write, structure: Structure, parts: list[Part], trouble: list[str], key: str
) -> Iterator[tuple[str, str]]:
    """Give the body's text for each class of graph: the same for all where one expression holds in all."""
    graphs = sorted({part.graph for part in parts})
    text = write(structure, parts)
    if text is not None:
        yield from ((graph, text) for graph in graphs)
        return
    for graph in graphs:
        own = [part for part in parts if part.graph == graph]
        text = write(structure, own)
        if text is None:
            trouble.append(f"{graph} {key}: {_unknown(own)}")
        else:
            yield graph, text


def without_periods(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out what is known of a layer by its number only.

    Layers with state have no such period: what seems one is their place between others, which the names do not tell.
    """
    return {
        graph: {key: entry for key, entry in entries.items() if "%" not in key and "/" not in key}
        for graph, entries in table.items()
    }


def steps(structure: Structure, parts: list[Part]) -> str | None:
    """Write what the allocator does in a part (core/graphs.py)."""
    search = Search(_sure_numbers(parts))
    texts = []
    allocation = 0
    for word in structure[0]:
        if word[0] == "+":
            size = _size([part.segment.sizes[allocation] for part in parts], search)
            if size is None:
                return None
            texts.append(f"{word},{size}")
            allocation += 1
        else:
            texts.append(word)
    return " ".join(texts) + (" | " + " ".join(structure[1]) if structure[1] else "")


def words(structure: Structure, parts: list[Part]) -> str | None:
    """Write the tensors of a part (core/offload.py)."""
    shapes = Shapes(_sure_numbers(parts))
    texts = []
    for position, word in enumerate(structure[0]):
        found = [part.segment.sizes[position] for part in parts]
        size = shapes.size(found, parts[0].segment.sources[position], view=_is_view(word))
        if size is None and not _is_view(word):
            return None
        texts.append(f"{word};{size}" if size else word)
    return " ".join(texts) + (" | " + " ".join(structure[1]) if structure[1] else "")


def _sure_numbers(parts: list[Part]) -> list[dict[str, int]]:
    """Give the numbers of each sample without those of weights that a model of this structure need not have."""
    weights = frozenset.intersection(*(part.segment.weights for part in parts))
    return [{name: size for name, size in part.numbers.items() if _sure(name, weights)} for part in parts]


def _sure(name: str, weights: frozenset[str]) -> bool:
    return not name.startswith("@") or name[1:].rpartition(".")[0] in weights


def _is_view(word: str) -> bool:
    return ">" in word


def _size(found: list[tuple[Tensor, str | None]], search: Search) -> str | None:
    """Give the element type and the expression of each dimension, ones left out."""
    tensors = [tensor for tensor, _ in found]
    if len({tensor.type for tensor in tensors}) > 1:
        return None
    kind, keys = tensors[0].type, matrix_of_keys(found, search)
    if keys is not None:
        return keys
    if any(product(tensor) != tensor.bytes for tensor in tensors):
        raw = search.find(tuple(tensor.bytes for tensor in tensors))
        return None if raw is None else f"24,{raw}"
    if all(is_rotation(tensor, weight) for tensor, weight in found):  # the block may be any, the product is not
        whole = search.pair(tuple(tensor.shape[0] * tensor.shape[1] for tensor in tensors))
        if whole is not None:
            return f"{kind},{whole}"
    dimensions = []
    for axis in range(4):
        target = tuple(tensor.shape[axis] for tensor in tensors)
        if any(value != 1 for value in target) or axis == 0:
            hints = [f"@{name}.1" for name in {name for _, name in found if name} if axis == 0]
            expression = search.find(target, hints)
            if expression is None:
                return None
            dimensions.append(expression)
    return ",".join([str(kind), *dimensions])


def _unknown(parts: list[Part]) -> str:
    search = Search(_sure_numbers(parts))
    for index in range(len(parts[0].segment.sizes)):
        found = [part.segment.sizes[index] for part in parts]
        if _size(found, search) is None:
            return f"{found[0][0].name} {found[0][0].op} {[tensor.shape for tensor, _ in found][:4]}"
    return "nothing"
