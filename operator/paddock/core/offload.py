"""Compute buffers of a graph whose layers lie on the device, on the host, or on both.

Templates hold the operations of each kind of layer; they are put together for all layers and given to llama.cpp's
scheduler (core/scheduler.py). That takes some milliseconds, so core/graphs.py answers first where everything is on one
device.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from paddock.api.report import HeaderSummary
from paddock.core import scheduler
from paddock.core.allocator import ALIGNMENT
from paddock.core.geometry import Geometry, Options
from paddock.core.ggml import ELEMENTS
from paddock.core.graphs import ComputeSizes, Part, Templates, parts_of, recorded_class
from paddock.core.outline import model_key
from paddock.core.scheduler import DEVICE, HOST, UNKNOWN, Graph, Operation
from paddock.core.sizes import atoms, evaluate

EXPERTS: Final = tuple(f"ffn_{part}_{kind}exps" for part in ("up", "down", "gate", "gate_up") for kind in ("ch", ""))
"""Names of experts' tensors (LLM_FFN_EXPS_REGEX, common/common.h:1224)."""


FEW: Final = 32
"""Tokens: in smaller graphs llama.cpp keeps some operations where their layer is (src/llama-context.cpp)."""
REPEATS: Final = (3, 5)
"""Times that a sequence of layers is computed, of all that follow each other; all of them are where the two differ."""
EVERY: Final = 2**31
LONGEST_PERIOD: Final = 8
OUTSIDE: Final = 2 * 2
"""Tensors in other buffers that come before all others: weights and caches in both places."""


class Places(NamedTuple):
    """Where a model's tensors lie: DEVICE or HOST."""

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    """Of each layer."""
    output: int

    @property
    def mixed(self) -> bool:
        """Whether they lie in both."""
        return len({*self.layers, *self.experts, self.output}) > 1


class Reference(NamedTuple):
    """Which tensor is meant."""

    letter: str
    """n is of the same part, p of the prologue, c of the part before, s shared, l a leaf; others lie outside."""
    number: int
    name: str


class Word(NamedTuple):
    """One tensor of a template."""

    early: bool
    """Computed within the layer before."""
    gap: bool
    """What is early of the layer after comes before it."""
    kind: str
    held: bool
    output: bool
    view: Reference | None
    sources: tuple[Reference, ...]
    alike: tuple[bool, ...]
    name: str
    """Of a leaf that other parts use."""
    size: tuple[str, ...]
    """Element type and expressions; empty where it is not known."""


class Body(NamedTuple):
    """The tensors of a part of a graph, and which of them later parts use."""

    words: tuple[Word, ...]
    leaving: tuple[Reference, ...]


@lru_cache(maxsize=256)
def parse(text: str) -> Body:
    """Parse `i!/p3=,w;0,E,T v>n0/n0;... | n1`."""
    words, _, leaving = text.partition("|")
    return Body(tuple(_word(one) for one in words.split()), tuple(_reference(one) for one in leaving.split()))


def _word(text: str) -> Word:
    what, _, size = text.partition(";")
    what, _, name = what.partition("#")
    head, _, sources = what.partition("/")
    kind, _, view = head.partition(">")
    used = [one for one in sources.split(",") if one]
    return Word(
        kind[0] == "<",
        kind[0] == "@",
        kind.lstrip("<@")[0],
        "*" in kind,
        "!" in kind,
        _reference(view) if view else None,
        tuple(_reference(one.rstrip("=")) for one in used),
        tuple(one.endswith("=") for one in used),
        name,
        tuple(size.split(",")) if size else (),
    )


def _reference(text: str) -> Reference:
    return Reference(text[0], int(text[1:]) if text[1:].isdigit() else 0, text[1:])


def scheduled_sizes(
    summary: HeaderSummary,
    options: Options,
    geometry: Geometry,
    templates: Templates,
    places: Places,
    alignment: int = ALIGNMENT,
) -> ComputeSizes | None:
    """Give the sizes with the device's alignment in bytes; None when a part of the graph is unknown.

    Layers that repeat need no more memory, as a rule; but some graphs keep something of each layer, as a mask.
    """
    parts = _known(summary, options, templates, places)
    if parts is None or summary.graph is None:
        return None
    kinds = summary.graph.kinds
    numbers = [atoms(summary, geometry, None), *(atoms(summary, geometry, kind) for kind in kinds)]
    sizes = _Sizes(templates.bodies, numbers)
    before: tuple[int, int] | None = None
    for repeats in (*REPEATS, EVERY):
        own, where = _shortened(parts, places, repeats)
        try:
            plan = _plan(tuple(templates.bodies[part.body] for part in own), where, geometry.tokens < FEW)
            now = scheduler.replayed(plan.steps, sizes.all(own, plan.origins), alignment)
        except (KeyError, IndexError):
            return None
        if now == before:
            break
        before = now
    return ComputeSizes(*now, all(part.seen for part in parts))


def flash_stays(summary: HeaderSummary, options: Options, templates: Templates, places: Places) -> bool:
    """Say whether llama.cpp keeps FlashAttention, which it may choose: not where a layer's is computed elsewhere."""
    parts = _known(summary, options, templates, places)
    if parts is None:
        return True
    own, where = _shortened(parts, places, REPEATS[0])
    try:
        return _flash(tuple(templates.bodies[part.body] for part in own), where)
    except (KeyError, IndexError):
        return True


def _known(summary: HeaderSummary, options: Options, templates: Templates, places: Places) -> list[Part] | None:
    """Give the parts of the graph in order; None where one is unknown, or was seen to differ from llama.cpp's."""
    outline = summary.graph
    if outline is None or not outline.layers:
        return None
    name = recorded_class(summary, options, templates)
    excluded = templates.left_out.get(summary.architecture, {}).get(name + ("/" if places.mixed else ""), [])
    if "*" in excluded or model_key(outline) in excluded:
        return None
    return parts_of(summary, outline, name, templates)


def _shortened(parts: Sequence[Part], places: Places, repeats: int) -> tuple[list[Part], Places]:
    """Leave out layers that repeat what was there often enough."""
    rows = list(zip(parts[1:-1], places.layers, places.experts, strict=True))
    kept: list[int] = []
    position = 0
    while position < len(rows):
        for period in range(1, LONGEST_PERIOD + 1):
            times = 1
            once = rows[position : position + period]
            while rows[position + times * period : position + (times + 1) * period] == once:
                times += 1
            if times > repeats:
                kept += range(position, position + repeats * period)
                position += times * period
                break
        else:
            kept.append(position)
            position += 1
    layers = tuple(places.layers[index] for index in kept)
    experts = tuple(places.experts[index] for index in kept)
    return [parts[0], *(parts[1 + index] for index in kept), parts[-1]], Places(layers, experts, places.output)


class _Planned(NamedTuple):
    """What is done with a graph of some bodies in some places, for any sizes."""

    steps: scheduler.Plan
    origins: tuple[tuple[int, int], ...]
    """Of each tensor of the parts: which part, and which of its tensors."""


@lru_cache(maxsize=4)
def _built(texts: tuple[str, ...], places: Places) -> tuple[Graph, tuple[tuple[int, int], ...]]:
    builder = _Builder([parse(text) for text in texts], places)
    return builder.build(), tuple(builder.origins)


@lru_cache(maxsize=32)
def _plan(texts: tuple[str, ...], places: Places, few: bool) -> _Planned:
    """Plan once: contexts and batches change sizes only. Raises KeyError and IndexError where the parts do not fit."""
    graph, origins = _built(texts, places)
    return _Planned(scheduler.planned(graph, few=few), origins)


@lru_cache(maxsize=256)
def _flash(texts: tuple[str, ...], places: Places) -> bool:
    return scheduler.flash_stays(_built(texts, places)[0])


class _Sizes:
    """Sizes of the tensors of parts."""

    def __init__(self, bodies: Sequence[str], numbers: Sequence[dict[str, int]]) -> None:
        self.bodies, self.numbers = bodies, numbers
        self.known: dict[tuple[int, int], list[int]] = {}

    def all(self, parts: Sequence[Part], origins: Sequence[tuple[int, int]]) -> list[int]:
        """Give the bytes of all tensors of a graph by number; raises KeyError."""
        tables = [self._of(part) for part in parts]
        return [UNKNOWN] * OUTSIDE + [tables[position][index] for position, index in origins]

    def _of(self, part: Part) -> list[int]:
        key = part.body, part.kind
        if key not in self.known:
            words, numbers = parse(self.bodies[part.body]).words, self.numbers[part.kind]
            self.known[key] = [_size(word, numbers) for word in words]
        return self.known[key]


def _size(word: Word, numbers: dict[str, int]) -> int:
    if not word.size:
        return UNKNOWN
    try:
        return _bytes(word, numbers)
    except KeyError:
        if word.view is None:
            raise
        return UNKNOWN


def _bytes(word: Word, numbers: dict[str, int]) -> int:
    kind, *dimensions = word.size
    if kind[0] == "~":  # a view with gaps, which is copied with them: a length, then lengths and strides
        element = ELEMENTS[int(kind[1:])]
        total = element.row(evaluate(dimensions[0], numbers))
        for length, stride in zip(dimensions[1::2], dimensions[2::2], strict=True):
            total += (evaluate(length, numbers) - 1) * element.row(evaluate(stride, numbers))
    else:
        total = ELEMENTS[int(kind)].row(evaluate(dimensions[0], numbers))
        for one in dimensions[1:]:
            total *= evaluate(one, numbers)
    return total


class _Builder:
    """Puts the parts together."""

    def __init__(self, bodies: Sequence[Body], places: Places) -> None:
        self.bodies, self.places = bodies, places
        self.graph = Graph()
        self.origins: list[tuple[int, int]] = []
        self.weights = [self.graph.outside(place, UNKNOWN, weight=True) for place in (DEVICE, HOST)]
        self.caches = [self.graph.outside(place, UNKNOWN, weight=False) for place in (DEVICE, HOST)]
        self.leaves: dict[str, int] = {}
        self.computed: list[int] = []
        """By the prologue."""
        self.own: list[list[int]] = [[] for _ in bodies]
        self.outside = [self._outside(position) for position in range(len(bodies))]
        self.carried: list[int] = []
        self.shared: list[int] = []
        self.kept = {
            (position, one.number) for position, body in enumerate(bodies) for one in body.leaving if one.letter == "s"
        }
        """Position of parts and of their tensors that more than the next part uses."""

    def build(self) -> Graph:
        """Give the whole graph."""
        for position in range(len(self.bodies)):
            self._add(position)
        return self.graph

    def _outside(self, position: int) -> dict[str, int]:
        """Give by letter the weights and caches that a part uses."""
        places, inside = self.places, 0 < position < len(self.bodies) - 1
        layer = places.layers[position - 1] if inside else places.layers[0]
        experts = places.experts[position - 1] if inside else layer
        return {
            "w": self.weights[layer],
            "e": self.weights[experts],
            "k": self.caches[layer],
            "h": self.weights[HOST],
            "f": self.weights[places.layers[0]],
            "o": self.weights[places.output],
        }

    def _add(self, position: int) -> None:
        """Add what a part has left; what is early of the part after it stands before one of its own."""
        for index in range(len(self.own[position]), len(self.bodies[position].words)):
            if self.bodies[position].words[index].gap and position + 1 < len(self.bodies):
                self._begin(position + 1)
            self._add_word(position, index)
        self.carried = self._leaving(position)

    def _leaving(self, position: int) -> list[int]:
        """Give what a part leaves to the next one; NOWHERE for what it has not yet."""
        own, leaving = self.own[position], self.bodies[position].leaving
        numbers = [one.number for one in leaving if one.letter != "s"]
        return [own[number] if number < len(own) else scheduler.NOWHERE for number in numbers]

    def _begin(self, position: int) -> None:
        """Add what is early of a part; it uses what the part before has computed so far."""
        before, self.carried = self.carried, self._leaving(position - 1)
        self._add_early(position)
        self.carried = before

    def _add_early(self, position: int) -> None:
        for index, word in enumerate(self.bodies[position].words):
            if not word.early:
                break
            self._add_word(position, index)

    def _add_word(self, position: int, index: int) -> None:
        word, own = self.bodies[position].words[index], self.own[position]
        tables = {"n": own, "p": self.computed, "c": self.carried, "s": self.shared}
        outside = self.outside[position]
        own.append(len(self.graph.places))
        if (position, index) in self.kept:
            self.shared.append(own[-1])
        if word.name:
            self.leaves[word.name] = own[-1]
        elif not position:
            self.computed.append(own[-1])

        def number(one: Reference) -> int:
            if one.letter == "l":
                return self.leaves[one.name]
            found = tables[one.letter][one.number] if one.letter in tables else outside[one.letter]
            if found == scheduler.NOWHERE:
                raise IndexError(one.number)
            return found

        view = scheduler.NOWHERE if word.view is None else number(word.view)
        operation = Operation(word.kind, word.output, view, tuple(map(number, word.sources)), word.alike)
        self.origins.append((position, index))
        self.graph.add(operation, UNKNOWN)
        if word.held or word.kind == scheduler.WEIGHTLESS:
            layer = self.places.layers[min(max(position - 1, 0), len(self.places.layers) - 1)]
            (self.graph.held if word.held else self.graph.fused).append((own[-1], layer))
