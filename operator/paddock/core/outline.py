"""The names under which the parts of a graph are looked up."""

import hashlib
from collections.abc import Iterable
from typing import Final

from paddock.api.report import GraphOutline

PERIOD: Final = 4
"""Layers after which an architecture may repeat what the file does not say (rotary positions left out)."""
_SMALL: Final = (".scale", ".input_scale", ".bias")
_ANYWAY: Final = ("output", "rope_freqs", "rope_factors_long", "rope_factors_short")
"""Names that change no graph: a tied embedding takes the place of `output`."""


def signatures(names: Iterable[str]) -> tuple[str, str]:
    """Give short names of a set of tensors: of all, and of those that change a graph's memory most."""
    every = sorted(names)
    return _short(every), "~" + _short([name for name in every if not name.endswith(_SMALL) and name not in _ANYWAY])


def _short(names: list[str]) -> str:
    return hashlib.blake2s(" ".join(names).encode(), digest_size=4).hexdigest()


def outside_key(letter: str, outline: GraphOutline) -> str:
    """Name what comes before (P) or after (Z) the layers of a model; experts and rotations change nothing there."""
    traits = {outline.kinds[kind].traits for kind in outline.layers}
    return letter + ",".join(sorted({trait.replace("e", "").replace("n", "") for trait in traits}))


def outside_keys(letter: str, outline: GraphOutline) -> list[str]:
    """Name it by itself, and before the layers also with the first one, which decides over the order of the inputs."""
    own = outside_key(letter, outline)
    first = outline.kinds[outline.layers[0]].traits
    return [own, f"{own}>{'r' if 'r' in first else 'a'}"] if letter == "P" else [own]


def _beside(traits: str) -> str:
    """Give what a layer's neighbour can change: it fetches its recurrent state before the layer ends."""
    return "".join(letter for letter in traits if letter in "ra")


def model_key(outline: GraphOutline) -> str:
    """Name the kinds of layers that a model has, and whether experts are chosen by groups (none, one or several)."""
    groups = min(outline.numbers.get("expert_group_count", 0), 2)
    return ",".join(sorted({outline.kinds[kind].traits for kind in outline.layers})) + f";{groups}"


def all_layer_keys(outline: GraphOutline) -> list[list[str]]:
    """Name each layer by itself, with its neighbours, and with its place among the periodic ones."""
    traits = [outline.kinds[kind].traits for kind in outline.layers]
    last = len(traits) - 1
    beside = {trait: _beside(trait) for trait in set(traits)}
    seen: set[str] = set()
    known: dict[tuple[str, str, str, str, int], list[str]] = {}
    keys = []
    for layer, trait in enumerate(traits):
        before = "F" if layer == 0 else beside[traits[layer - 1]]
        after = "L" if layer == last else beside[traits[layer + 1]] + ("L" if layer + 1 == last else "")
        own = trait + ("F" if layer == 0 else "") + ("L" if layer == last else "")
        fresh = "!" if "r" in trait and trait not in seen else ""
        seen.add(trait)
        place = (before, own, fresh, after, layer % PERIOD)
        if place not in known:  # most layers are alike
            between = f"{before}>{own}{fresh}>{after}"
            fourth = "3" if layer % PERIOD == PERIOD - 1 else "~"
            known[place] = [own, f"{before}>{own}>{after}", between, f"{between}%{fourth}", f"{between}/{layer % 2}"]
        keys.append(known[place])
    return keys
