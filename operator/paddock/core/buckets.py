"""A map that is never changed in place: a change makes a new one that shares all but a small part with the old one.

A dict of ten thousand entries takes longer to copy than a decision takes; here only the touched parts are copied.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")
PARTS = 64
"""A power of two. A change copies about one part in so many."""


class Buckets(Generic[V]):
    """Values by name. Which part holds a name is nobody's business: only single names are ever asked for."""

    __slots__ = ("_parts",)

    def __init__(self, items: Iterable[tuple[str, V]] = ()) -> None:
        parts: list[dict[str, V]] = [{} for _ in range(PARTS)]
        for name, value in items:
            parts[hash(name) & (PARTS - 1)][name] = value
        self._parts = tuple(parts)

    def get(self, name: str) -> V | None:
        """Give a value; None when there is none."""
        return self._parts[hash(name) & (PARTS - 1)].get(name)

    def changed(self, values: Mapping[str, V | None]) -> "Buckets[V]":
        """Give the map with other values under these names; None takes a name out."""
        parts = list(self._parts)
        fresh: set[int] = set()
        for name, value in values.items():
            at = hash(name) & (PARTS - 1)
            if at not in fresh:
                fresh.add(at)
                parts[at] = dict(parts[at])
            if value is None:
                parts[at].pop(name, None)
            else:
                parts[at][name] = value
        out: Buckets[V] = Buckets.__new__(Buckets)
        out._parts = tuple(parts)
        return out
