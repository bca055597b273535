"""Finds how a dimension of a tensor is made of the numbers of the model and of the options, from several samples."""

from collections.abc import Iterator, Sequence
from typing import Final

FIRST: Final = (
    "T", "Q", "R", "C", "W", "N", "S", "O", "E", "H", "K", "heads", "expert_used_count", "hk", "hv", "H*hk", "H*hv",
    "K*hk", "K*hv", "V", "rk", "gk", "gv", "q64", "q128", "q256",
)  # fmt: skip
"""Tried in this order, so that of two numbers that agree in every sample the more general one is taken."""
DERIVED: Final = frozenset({"rk", "gk", "gv", "q64", "q128", "q256"})
"""Small numbers that others give; a constant that equals one in every sample is more likely a constant."""
SIZES: Final = frozenset({*FIRST, "expert_used_count"}) - DERIVED
"""These are meant even where they are the same small number in every sample."""
SMALL: Final = 8
ROTATION: Final = 64
"""The least block that quantized caches are rotated in; taken for itself, not for a number that happens to equal it."""
STRANGERS: Final = (
    "context_length", "vocab_size", "rope.scaling", "rope.dimension_sections", "attention.sliding_window",
    "attention.causal", "leading_dense", "nextn", "n_deepstack", "interleave", "moe_every", "expert_gating",
    "expert_weights", "expert_group_s", "hash_layer", "hrm.", "swin_norm", "rescale_every", "decoder_", "use_parallel",
    "attention.indexer.types", "attention.recurrent_layers", "attention.compress_ratios", "full_attention_interval",
    "posnet.", "convnext.", "attention.rope_pattern", "attn_res", "dense_", "attention.temperature", "embedding_length",
    "features_length", "feed_forward_length", "attention.group_norm", "attention.relative", "block_count",
    "attention.head_count", "attention.max_alibi", "kda.safe", "ssm.dt_b_c", "rope.scaling.finetuned",
)  # fmt: skip
"""Numbers of the metadata that no tensor is as long as, or that are known by a shorter name."""
_TOKENS: Final = frozenset({"T", "Q", "R"})
_FACTORS: Final = ("2", "3", "4", "5", "6", "7", "8")
_LARGE: Final = ("16", "64", "128", "256")


class Search:
    """All numbers of some samples."""

    def __init__(self, samples: Sequence[dict[str, int]]) -> None:
        self.samples = samples
        self.alike = len({(sample["E"], sample["V"]) for sample in samples}) == 1
        names = [
            name
            for name in samples[0]
            if all(name in sample for sample in samples) and (name in FIRST or not name.startswith(STRANGERS))
        ]
        rank = {name: place for place, name in enumerate(FIRST)}
        names.sort(key=lambda name: (rank.get(name, len(FIRST)), name.startswith("@"), len(name), name))
        self.vectors = {name: tuple(sample[name] for sample in samples) for name in names}
        self.by_vector: dict[tuple[int, ...], str] = {}
        for name, vector in self.vectors.items():
            self.by_vector.setdefault(vector, name)
        self.pairs: dict[tuple[int, ...], str] = {}
        self.cache: dict[tuple[int, ...], str | None] = {}

    def find(self, target: tuple[int, ...], hints: Sequence[str] = ()) -> str | None:
        """Give the simplest expression that equals the target in every sample."""
        for hint in hints:
            if self.vectors.get(hint) == target:
                return hint
        if target not in self.cache:
            self.cache[target] = next(self._candidates(target), None)
        return self.cache[target]

    def pair(self, target: tuple[int, ...]) -> str | None:
        """Give a product of two general numbers that equals the target in every sample."""
        for one in FIRST:
            vector = self.vectors.get(one)
            if vector and all(vector) and all(value % own == 0 for value, own in zip(target, vector, strict=True)):
                name = self.by_vector.get(tuple(value // own for value, own in zip(target, vector, strict=True)))
                if name in FIRST:
                    return f"*:{one}:{name}"
        return None

    def _candidates(self, target: tuple[int, ...]) -> Iterator[str]:
        constant = len(set(target)) == 1
        small = constant and (target[0] <= SMALL or target[0] == ROTATION)
        named = self.by_vector.get(target, "") in SIZES and target[0] not in {2, ROTATION}
        if small and not named and (not self.alike or self.by_vector.get(target) in DERIVED):
            yield str(target[0])
        if target in self.by_vector:
            yield self.by_vector[target]
        if small:
            yield str(target[0])
        if not self.alike:
            yield from self._multiples(target, _FACTORS)
        yield from self._longer(target)
        yield from self._pairs(target)
        yield from self._multiples(target, (*_FACTORS, *_LARGE))
        yield from self._sums(target)
        if constant:
            yield str(target[0])
        yield from self._triples(target)
        yield from self._products(target)

    def _multiples(self, target: tuple[int, ...], factors: Sequence[str]) -> Iterator[str]:
        for factor in factors:
            number = int(factor)
            if all(value % number == 0 for value in target):
                name = self.by_vector.get(tuple(value // number for value in target))
                if name:
                    yield f"*:{factor}:{name}"
            name = self.by_vector.get(tuple(value * number for value in target))
            if name:
                yield f"/:{name}:{factor}"

    def _sums(self, target: tuple[int, ...]) -> Iterator[str]:
        for number in (1, 2, 3, 4, 8):
            name = self.by_vector.get(tuple(value - number for value in target))
            if name:
                yield f"+:{number}:{name}"

    def _longer(self, target: tuple[int, ...]) -> Iterator[str]:
        """Give so many tokens and a few more: a number that happens to be as small is not meant."""
        for number in range(1, 4):
            name = self.by_vector.get(tuple(value - number for value in target))
            if name in _TOKENS:
                yield f"+:{name}:{number}"

    def _pairs(self, target: tuple[int, ...]) -> Iterator[str]:
        for one, vector in self.vectors.items():
            if all(vector) and all(value % own == 0 for value, own in zip(target, vector, strict=True)):
                name = self.by_vector.get(tuple(value // own for value, own in zip(target, vector, strict=True)))
                if name:
                    yield f"*:{one}:{name}"
        for one, vector in self.vectors.items():
            if any(vector):
                name = self.by_vector.get(tuple(value - own for value, own in zip(target, vector, strict=True)))
                if name and any(self.vectors[name]):
                    yield f"+:{one}:{name}"
                name = self.by_vector.get(tuple(value + own for value, own in zip(target, vector, strict=True)))
                if name:
                    yield f"-:{name}:{one}"
                name = self.by_vector.get(tuple(value * own for value, own in zip(target, vector, strict=True)))
                if name and all(vector):
                    yield f"/:{name}:{one}"

    def _triples(self, target: tuple[int, ...]) -> Iterator[str]:
        """Give sums and products with one more number, tried only after everything simpler."""
        names = [name for name in self.vectors if any(self.vectors[name])]
        for one in names:
            vector = self.vectors[one]
            rest = tuple(value - own for value, own in zip(target, vector, strict=True))
            if min(rest) > 0:
                yield from (f"+:{one}:{found}" for found in self._simple(rest))
            if all(vector) and all(value % own == 0 for value, own in zip(target, vector, strict=True)):
                rest = tuple(value // own for value, own in zip(target, vector, strict=True))
                yield from (f"*:{one}:{found}" for found in self._simple(rest))

    def _products(self, target: tuple[int, ...]) -> Iterator[str]:
        """Give sums of two products."""
        if not self.pairs:
            names = [name for name, vector in self.vectors.items() if any(vector)]
            for place, one in enumerate(names):
                for other in names[place:]:
                    vector = tuple(a * b for a, b in zip(self.vectors[one], self.vectors[other], strict=True))
                    self.pairs.setdefault(vector, f"*:{one}:{other}")
        for vector, name in self.pairs.items():
            rest = self.pairs.get(tuple(value - own for value, own in zip(target, vector, strict=True)))
            if rest:
                yield f"+:{name}:{rest}"

    def _simple(self, target: tuple[int, ...]) -> Iterator[str]:
        for factor in _FACTORS:
            number = int(factor)
            if all(value % number == 0 for value in target):
                name = self.by_vector.get(tuple(value // number for value in target))
                if name:
                    yield f"*:{factor}:{name}"
        for one, vector in self.vectors.items():
            if all(vector) and all(value % own == 0 for value, own in zip(target, vector, strict=True)):
                name = self.by_vector.get(tuple(value // own for value, own in zip(target, vector, strict=True)))
                if name:
                    yield f"*:{one}:{name}"
            name = self.by_vector.get(tuple(value - own for value, own in zip(target, vector, strict=True)))
            if name and any(vector) and any(self.vectors[name]):
                yield f"+:{one}:{name}"
