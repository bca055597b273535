"""A need that llama.cpp itself has counted: put in the form of an estimate, and compared with one.

The two are never mixed: where both exist the measured one is used, and each difference is told.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from paddock.core.estimate import Addend, Kind, MemoryEstimate, Place, Source, added_up

PLACES: Final[tuple[Place, ...]] = ("device", "host")
COUNTED: Final[tuple[Kind, ...]] = ("weights", "kvCache", "compute")
"""What llama.cpp counts; overhead is never among it."""

COUNTED_TOO_HIGH: Final = frozenset({"minimax-01", "kimi-linear"})
"""Architectures whose compute buffer is smaller in truth than counted: with no_alloc the size is that of the first
trial graph, of several sequences, while a real load takes that of the last, of one (src/llama-context.cpp:702-728)."""

_NAMES: Final = {"weights": "weights", "kvCache": "keys, values and state", "compute": "compute buffer"}


@dataclass(frozen=True, slots=True)
class Counted:
    """What llama.cpp counted in one place, in bytes."""

    weights: int
    kv_cache: int
    compute: int

    def of(self, kind: Kind) -> int:
        """Give the bytes of a kind."""
        return {"weights": self.weights, "kvCache": self.kv_cache, "compute": self.compute, "overhead": 0}[kind]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement."""

    devices: tuple[Counted, ...]
    host: Counted
    context: int
    """Total context in tokens after llama.cpp's padding."""
    version: str
    """ggml's version and commit of the libraries."""
    seconds: float
    """How long llama.cpp took."""

    @property
    def device(self) -> Counted:
        """What llama.cpp counted on all devices together."""
        return Counted(*(self.of("device", kind) for kind in COUNTED))

    def of(self, place: Place, kind: Kind) -> int:
        """Give the bytes of a kind in a place."""
        return sum(one.of(kind) for one in (self.devices if place == "device" else (self.host,)))


class Difference(NamedTuple):
    """One sum for which formula and measurement are not the same."""

    place: Place
    kind: Kind
    formula: int
    measured: int


def differences(formula: MemoryEstimate, measured: Measurement) -> list[Difference]:
    """Compare each sum; both must be for the same device."""
    pairs = [
        Difference(place, kind, formula.sum(place, kind), measured.of(place, kind))
        for place in PLACES
        for kind in COUNTED
    ]
    return [pair for pair in pairs if pair.formula != pair.measured]


def expected(formula: MemoryEstimate, difference: Difference) -> bool:
    """Tell whether a difference is as the formula says of itself: a bound and above, or within its hundredth."""
    sources = _sources(formula, difference.place, difference.kind)
    if "bound" in sources and difference.formula > difference.measured:
        return True
    return "formula" in sources and abs(difference.formula - difference.measured) * 100 <= difference.measured


def _sources(formula: MemoryEstimate, place: Place, kind: Kind) -> set[Source]:
    return {one.source for one in formula.addends if (one.place, one.kind) == (place, kind)}


def composed(
    architecture: str, measured: Measurement, plain: MemoryEstimate, backend: MemoryEstimate
) -> MemoryEstimate:
    """Put a measurement of the plain device in the form of an estimate for a backend.

    plain and backend are the formula's estimates for the two: by what the second has more, as padding and scratch, the
    measured sums are raised, and overhead is the second's. For the plain device give the same estimate twice.
    """
    too_high = architecture in COUNTED_TOO_HIGH
    places: list[tuple[Place, int, Counted]] = [("device", *one) for one in enumerate(measured.devices)]
    addends = []
    for place, number, counted in [*places, ("host", 0, measured.host)]:
        for kind in COUNTED:
            source: Source = "bound" if too_high and kind == "compute" else "exact"
            addends.append(Addend(_NAMES[kind], place, kind, counted.of(kind), source, number))
            more = backend.sum(place, kind, number) - plain.sum(place, kind, number)
            source = "bound" if "bound" in _sources(backend, place, kind) else "formula"
            addends.append(Addend(f"{_NAMES[kind]} of this backend", place, kind, max(more, 0), source, number))
    addends += [one for one in backend.addends if one.kind == "overhead"]
    return added_up(addends)


def plausible(measured: Measurement, formula: MemoryEstimate) -> bool:
    """Tell whether the weights agree: they are exact in both, so that another sum means a misread table."""
    total = measured.of("device", "weights") + measured.of("host", "weights")
    expected = formula.sum("device", "weights") + formula.sum("host", "weights")
    return abs(total - expected) <= expected // 20
