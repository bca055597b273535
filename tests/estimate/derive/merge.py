"""Puts newly derived templates beside those that ship, and says what differs.

An architecture's are replaced where nothing is lost that agreed with llama.cpp's numbers, else what ships is kept. The
bodies are numbered in one order, so that the same templates give the same file whatever was derived anew.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from estimate.derive.verify import Answer, Met, met
from paddock.core.graphs import Templates


class Change(NamedTuple):
    """What became of the templates of an architecture."""

    architecture: str
    text: str
    """Empty when nothing differs."""
    graphs: dict[str, Templates]
    """By class of graph whose templates shall ship."""


def texts(found: Templates, architecture: str, graph: str) -> dict[str, Any]:
    """Give the table of a class of graphs with the bodies in place of their numbers."""

    def text(entry: int | dict[str, int]) -> Any:
        return found.bodies[entry] if isinstance(entry, int) else {key: found.bodies[own] for key, own in entry.items()}

    return {key: text(entry) for key, entry in sorted(found.graphs[architecture][graph].items())}


def gathered(build: int, graphs: dict[str, dict[str, Templates]], names: dict[str, list[str]]) -> Templates:
    """Put templates together, by architecture and class of graph; the bodies in the order of their first use."""
    numbers: dict[str, int] = {}

    def number(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {key: number(own) for key, own in sorted(entry.items())}
        return numbers.setdefault(entry, len(numbers))

    found = {
        architecture: {
            graph: {key: number(entry) for key, entry in texts(part, architecture, graph).items()}
            for graph, part in sorted(own.items())
        }
        for architecture, own in sorted(graphs.items())
    }
    return Templates(build, tuple(numbers), found, dict(sorted(names.items())), {})


def merged(shipped: Templates, fresh: Iterable[Templates], answer: Answer) -> tuple[Templates, list[Change]]:
    """Give what shall ship, without what is left out, and what became of each architecture that was derived anew."""
    old = replace(shipped, left_out={})
    graphs = {architecture: dict.fromkeys(own, old) for architecture, own in old.graphs.items()}
    names, changes, before = dict(old.names), [], met(old, answer)
    for part in fresh:
        after = met(part, answer)
        for architecture in sorted(part.names):
            change = _change(architecture, (old, part), (before, after))
            changes.append(change)
            graphs[architecture] = change.graphs
            if any(one is part for one in change.graphs.values()):
                names[architecture] = part.names[architecture]
    return gathered(old.build, graphs, names), changes


def _change(architecture: str, pair: tuple[Templates, Templates], measured: tuple[Met, Met]) -> Change:
    old, new = pair
    before, after = ({one for one in side if one[0] == architecture} for side in measured)
    own = [dict.fromkeys(one.graphs.get(architecture, {}), one) for one in pair]
    graphs = own[1 if before <= after else 0]
    parts = [
        {
            (graph, key): text
            for graph in one.graphs.get(architecture, {})
            for key, text in texts(one, architecture, graph).items()
        }
        for one in pair
    ]
    if parts[0] == parts[1] and old.names.get(architecture) == new.names[architecture]:
        return Change(architecture, "", own[0])
    counts = {
        "parts less": len(parts[0].keys() - parts[1].keys()),
        "more": len(parts[1].keys() - parts[0].keys()),
        "other": sum(parts[0][key] != parts[1][key] for key in parts[0].keys() & parts[1].keys()),
        "measurements lost": len(before - after),
        "won": len(after - before),
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items())
    return Change(architecture, text if before <= after else f"{text}; what ships is kept", graphs)
