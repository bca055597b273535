"""Cuts a graph as a model's code builds it, before the scheduler split it, into prologue, layers and epilogue.

The words are those that core/offload.py reads: kind, `!` for an output, the tensor that a view looks at, the sources.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from estimate.derive.graph import IN_PLACE, INPUT, OUTPUT, UNARY, Graph, Tensor, same_layout
from estimate.derive.segments import IrregularError, Segment, layer_of, product_weight
from paddock.core import scheduler
from paddock.core.offload import EXPERTS

_VIEWS: Final = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "NONE"})
_HOST: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_FIRST: Final = ("hrm.", "per_layer_", "conv1d.", "token_embd_norm.")
"""Tensors outside the layers that are kept with the first one (llama-arch.cpp: LLM_TENSOR_LAYER_REPEATING)."""
_DERIVED: Final = re.compile(r"-\d+ \(")
"""Views and copies have the name of what they are of, wherever they are made."""
_HELD: Final = re.compile(r"(norm|l_last)-\d+")
"""Names that keep an operation where its layer is, in graphs of few tokens (src/llama-context.cpp, graph_get_cb)."""
_ANONYMOUS: Final = re.compile(r"leaf_\d+")
_OWN_NAME: Final = re.compile(r"blk\.\d+\.|_l\d+.*")
_OWN: Final = re.compile(r"(?:^blk\.|^cache_\w+_l)(\d+)")


@dataclass
class Plain:
    """A graph without the copies that the scheduler put in."""

    graph: Graph
    leaves: list[int]
    nodes: list[int]
    sources: dict[int, list[int]]
    instead: dict[int, int] = field(default_factory=dict)
    """For what was taken out the tensor that has its memory."""

    def view(self, number: int) -> int:
        """Give the tensor that one looks at, or -1."""
        seen = self.graph.tensors[number].view
        return self.instead.get(seen, seen)

    def tensor(self, number: int) -> Tensor:
        """Give a tensor."""
        return self.graph.tensors[number]


def plain(graph: Graph) -> Plain:
    """Take out the scheduler's copies, and sums of more than two experts' results, which take no more memory."""
    tensors, order = graph.tensors, [number for number, _ in graph.nodes]
    copies: dict[int, int] = {}
    for before, number in pairwise(order):
        tensor = tensors[number]
        if tensor.op == "NONE" and tensor.view < 0 and "#" in tensor.name:
            copies[number] = tensors[before].sources[0]
    added = {*copies, *(number for number, after in pairwise(order) if after in copies)}
    nodes = [number for number in order if number not in added]
    sources = {number: [copies.get(one, one) for one in tensors[number].sources] for number in nodes}
    leaves = [number for number, _ in graph.leaves if not tensors[number].external]
    found = Plain(graph, leaves, nodes, sources)
    _join_sums(found)
    _drop_finishes(found)
    return found


def _drop_finishes(found: Plain) -> None:
    """Take out scales and biases, which are computed in place where the product is: files have them or not."""
    uses, seen = _uses(found), {found.tensor(number).view for number in found.nodes}
    instead: dict[int, int] = {}
    for number in found.nodes:
        own, tensor = [instead.get(one, one) for one in found.sources[number]], found.tensor(number)
        found.sources[number] = own
        if tensor.op not in {"ADD", "MUL"} or len(own) != 2 or not found.tensor(own[1]).external:
            continue
        product, weight = own[0], found.tensor(own[1]).name
        anchor = found.tensor(found.sources[product][0]).name if found.sources.get(product) else ""
        alone = (
            uses[found.tensor(number).sources[0]] == 1
            and product not in seen
            and same_layout(tensor, found.tensor(product))
        )
        if alone and not tensor.flags & OUTPUT and anchor.endswith(".weight") and _stem(anchor) == _stem(weight):
            instead[number] = product
    found.nodes = [number for number in found.nodes if number not in instead]
    for number in found.nodes:
        found.sources[number] = [instead.get(one, one) for one in found.sources[number]]
    found.instead = instead


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _uses(found: Plain) -> dict[int, int]:
    uses: dict[int, int] = defaultdict(int)
    for own in found.sources.values():
        for source in own:
            uses[source] += 1
    return uses


def _join_sums(found: Plain) -> None:
    uses = _uses(found)
    gone: set[int] = set()
    for number in found.nodes:
        own = found.sources[number]
        if found.tensor(number).op != "ADD" or len(own) != 2 or own[0] not in found.sources:
            continue
        before, last = found.tensor(own[0]), found.tensor(own[1])
        first = found.sources[own[0]]
        if before.op != "ADD" or last.op != "VIEW" or uses[own[0]] != 1 or uses[own[1]] != 1:
            continue
        roots = {found.tensor(one).view for one in first}
        if roots == {last.view} and last.view >= 0 and same_layout(before, found.tensor(number)):
            gone |= {own[0], own[1]}
            found.sources[number] = first
    found.nodes = [number for number in found.nodes if number not in gone]


def cut(graph: Graph, layers: int) -> list[Segment]:
    """Cut a graph; raises IrregularError."""
    return _Cutter(plain(graph), layers).run()


class _Cutter:
    def __init__(self, found: Plain, layers: int) -> None:
        self.found, self.layers = found, layers
        self.order = {number: index for index, number in enumerate(found.nodes)}
        self.place = self._places()
        self._move_views()
        self._place_leaves()
        self.names = self._names()
        self.at: dict[int, tuple[int, int]] = {}
        count: dict[int, int] = defaultdict(int)
        for number in (*found.leaves, *found.nodes):
            segment = self.place[number]
            self.at[number] = segment, count[segment]
            count[segment] += 1
        self.last: dict[int, int] = {}
        for number in found.nodes:
            for source in (*found.sources[number], found.view(number)):
                self.last[source] = max(self.last.get(source, 0), self.place[number])
        far = (one for one in found.nodes if self.place[one] and self.last.get(one, 0) > self.place[one] + 1)
        self.shared = {number: index for index, number in enumerate(far)}

    def _places(self) -> dict[int, int]:
        """Give each node its segment: 0 before the layers, layer + 1, layers + 1 after them."""
        order = self.found.nodes
        labels = [self._label(number) for number in order]
        first = next((index for index, label in enumerate(labels) if label == 0), None)
        if first is None:
            raise IrregularError("no first layer")
        following, latest = [0] * len(order), self.layers + 1
        for index in range(len(order) - 1, first - 1, -1):
            label = labels[index]
            latest = latest if label is None or label >= self.layers else min(latest, label + 1)
            following[index] = latest
        place: dict[int, int] = {}
        for index, number in enumerate(order):
            label = labels[index]
            own = following[index] if label is None or label >= self.layers else label + 1
            if label is None:
                seen = (*self.found.sources[number], self.found.view(number))
                own = max((own, *(place.get(source, 0) for source in seen)))
            place[number] = own if index >= first else 0
        if set(place.values()) | {0, self.layers + 1} != set(range(self.layers + 2)):
            raise IrregularError("the layers are not one after the other")
        return place

    def _place_leaves(self) -> None:
        """Count what nobody fills and only one layer uses to that layer, all other leaves to the prologue."""
        found = self.found
        users: dict[int, set[int]] = defaultdict(set)
        for number in found.nodes:
            for source in (*found.sources[number], found.view(number)):
                users[source].add(self.place[number])
        for leaf in found.leaves:
            own = users[leaf] if not found.tensor(leaf).flags & INPUT else set()
            self.place[leaf] = own.pop() if len(own) == 1 else 0

    def _names(self) -> dict[int, str]:
        """Name the leaves of the prologue; those without a name of their own by number.

        Where layers of several kinds may come first, and with them the order of the prologue differs, all of it has
        names: leaves without their own by what is computed of them, results by what they are computed of.
        """
        found, count, names = self.found, defaultdict[str, int](int), dict[int, str]()
        hybrid = self._hybrid()

        def add(number: int, name: str) -> None:
            name = name.replace(" ", "")
            count[name] += 1
            names[number] = name if count[name] == 1 else f"{name}.{count[name]}"

        for leaf in found.leaves:
            if not self.place[leaf]:
                name = found.tensor(leaf).name
                users = self._users(leaf) if hybrid and _ANONYMOUS.fullmatch(name) else ""
                add(leaf, users or _ANONYMOUS.sub("leaf", name))
        for number in found.nodes if hybrid else ():
            if not self.place[number]:
                seen = (*found.sources[number], found.view(number))
                of = next((names[one] for one in seen if one in names), "weights")
                add(number, f"{found.tensor(number).op.lower()}_{of}")
        return names

    def _hybrid(self) -> bool:
        caches = [one.name for one in self.found.graph.tensors if one.external and is_cache(one.name)]
        keys = [name.startswith("cache_k") for name in caches]
        states = [not name.startswith("cache_") or name.startswith("cache_r") for name in caches]
        return any(keys) and any(states)

    def _users(self, leaf: int) -> str:
        """Name a leaf by the operations that it is used by, and what with."""
        found, what = self.found, set()
        for number in found.nodes:
            if leaf in (*found.sources[number], found.view(number)):
                others = (found.tensor(one).name for one in found.sources[number] if found.tensor(one).external)
                what.add("_".join([found.tensor(number).op.lower(), *(_OWN_NAME.sub("", one) for one in others)]))
        return "of_" + "+".join(sorted(what))

    def _move_views(self) -> None:
        """Count views of inputs, which take no memory and which all layers share, to the prologue."""
        found = self.found
        for number in found.nodes:
            tensor = found.tensor(number)
            plain_view = (
                tensor.op in _VIEWS and self.place[number] and not found.tensor(self.found.view(number)).external
            )
            if plain_view and not any(
                self.place.get(one, 0) for one in (self.found.view(number), *found.sources[number])
            ):
                self.place[number] = 0
        found.nodes.sort(key=lambda number: (self.place[number] > 0, self.order[number]))
        self.order = {number: index for index, number in enumerate(found.nodes)}

    def _label(self, number: int) -> int | None:
        """Give the layer whose name, weights or cache a node has."""
        tensor = self.found.tensor(number)
        own = layer_of(tensor.name)
        if own is not None and not _DERIVED.search(tensor.name):
            return own
        for source in (*self.found.sources[number], self.found.view(number)):
            if source >= 0 and self.found.tensor(source).external:
                name = self.found.tensor(source).name
                match = _OWN.match(name)
                if match:
                    return int(match.group(1))
                if is_cache(name):
                    return layer_of(name)
        return None

    def run(self) -> list[Segment]:
        found = self.found
        groups: list[list[int]] = [[] for _ in range(self.layers + 2)]
        for number in (*found.leaves, *found.nodes):
            groups[self.place[number]].append(number)
        carried: list[int] = []
        segments = []
        for position, group in enumerate(groups):
            marks = self._marks(group, position)
            words = [marks.get(number, "") + self._word(number, position, carried) for number in group]
            sizes = [(found.tensor(number), self._product(number)) for number in group]
            fresh = [number for number in group if position and self.last.get(number, 0) > position]
            names = [f"{'s' if one in self.shared else 'n'}{self.at[one][1]}" for one in fresh]
            sources = [self._inside(number, position) for number in group]
            segments.append(Segment(tuple(words), tuple(names), sizes, sources, self._weights(group)))
            carried = [one for one in fresh if one not in self.shared]
        return segments

    def _weights(self, group: list[int]) -> frozenset[str]:
        """Name the weights that a part uses, without their layer."""
        found = self.found
        used = {one for number in group for one in (*found.sources.get(number, ()), found.view(number))}
        names = (found.tensor(one).name for one in used if one >= 0 and found.tensor(one).external)
        return frozenset(re.sub(r"^blk\.\d+\.", "", name.removesuffix(".weight")) for name in names)

    def _inside(self, number: int, segment: int) -> tuple[int, ...]:
        found = self.found
        seen = [self.at[one] for one in found.sources.get(number, ()) if one in self.at and one != number]
        return tuple(index for place, index in seen if place == segment)

    def _marks(self, group: list[int], segment: int) -> dict[int, str]:
        """Mark what is computed within the layer before (<), and where that of the layer after is computed (@)."""
        if not segment:
            return {}
        order = self.order
        place = {one: own for one, own in self.place.items() if one in order}
        end = max((order[one] for one, own in place.items() if own == segment - 1), default=-1)
        group = [number for number in group if number in order]
        marks = {number: "<" for number in group if segment > 1 and order[number] < end}
        after = sorted(order[one] for one, own in place.items() if own == segment + 1)
        later = [number for number in group if after and order[number] > after[0]]
        early = sum(one < order[group[-1]] for one in after)
        if marks and set(marks) != set(group[: len(marks)]):
            raise IrregularError("a layer begins twice")
        if later:
            if order[later[0]] - after[0] != early or later[0] in marks:
                raise IrregularError("a layer begins in pieces")
            marks[later[0]] = "@"
        return marks

    def _product(self, number: int) -> str | None:
        return product_weight(self.found.graph, number)

    def _word(self, number: int, segment: int, carried: list[int]) -> str:
        found, tensor = self.found, self.found.tensor(number)
        if number not in found.sources:
            kind = scheduler.INPUT if tensor.flags & INPUT else scheduler.LEAF
            return f"{kind}#{self.names[number]}" if number in self.names else kind
        text = _kind(tensor) + ("*" if _HELD.fullmatch(tensor.name) else "") + ("!" if tensor.flags & OUTPUT else "")
        if self.found.view(number) >= 0:
            text += ">" + self._reference(number, self.found.view(number), segment, carried)
        marks, replaces = [], text[0] in (scheduler.IN_PLACE, scheduler.ROPE)
        for source in found.sources[number]:
            alike = replaces and same_layout(tensor, found.tensor(source))
            marks.append(self._reference(number, source, segment, carried) + ("=" if alike else ""))
        return text + "/" + ",".join(marks) + (f"#{self.names[number]}" if number in self.names else "")

    def _reference(self, number: int, other: int, segment: int, carried: list[int]) -> str:
        tensor = self.found.tensor(other)
        if tensor.external:
            return self._outside(number, tensor, segment)
        if other in carried:
            return f"c{carried.index(other)}"
        origin, index = self.at[other]
        if other in self.names:
            return f"l{self.names[other]}"
        if other in self.shared:
            return f"s{self.shared[other]}" if origin != segment else f"n{index}"
        if origin not in (0, segment):
            raise IrregularError(f"{tensor.name} is used by another layer")
        if origin == segment:
            return f"n{index}"
        return f"p{index - len(self.names)}"

    def _outside(self, number: int, tensor: Tensor, segment: int) -> str:
        """Name what lies in another buffer by where that is."""
        if is_cache(tensor.name):
            return "k"
        if tensor.name.startswith("blk."):
            return "e" if tensor.name.split(".", 2)[2].startswith(EXPERTS) else "w"
        if tensor.name.startswith(_HOST) and self.found.tensor(number).op == "GET_ROWS":
            return "h"
        if 0 < segment <= self.layers:
            return "w"
        return "f" if segment == 0 and tensor.name.startswith(_FIRST) else "o"


def is_cache(name: str) -> bool:
    """Say whether a tensor in another buffer is a cache; some architectures give them names of results."""
    return name.startswith("cache_") or (not name.startswith("blk.") and layer_of(name) is not None)


def _kind(tensor: Tensor) -> str:
    if tensor.op in _VIEWS:
        return scheduler.VIEW
    if tensor.op == "ROPE":
        return scheduler.ROPE
    if tensor.op == "FLASH_ATTN_EXT":
        return scheduler.WEIGHTLESS
    return scheduler.IN_PLACE if tensor.op in IN_PLACE or tensor.op in UNARY else scheduler.PLAIN
