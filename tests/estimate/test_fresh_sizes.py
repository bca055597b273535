"""Sizes that nothing was derived from: random shapes of usual architectures, whole and divided, against llama.cpp."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from estimate.corpus import SHAPES, Shape, metadata, tensors
from estimate.measuring import libraries
from estimate.models import estimator_of
from estimate.test_tensor_split import SMALL, agree, compare_at
from paddock.agent.measure import Meter, Subject
from paddock.core.estimate import Options
from paddock.core.measured import COUNTED
from support.gguf_writer import Q8_0, write_gguf

FOLDER = libraries()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
SETS = {
    "one": Options(context=5000),
    "slots": Options(context=12_000, parallel=3, ubatch=384),
    "unified": Options(context=20_000, parallel=4, kv_unified=True, cache_type_k="q8_0", cache_type_v="q8_0"),
    "without flash": Options(context=3000, parallel=2, flash_attention="off", batch=700, ubatch=300),
    "partial": Options(context=6000, gpu_layers=3),
    "two": Options(context=6000, shares=(2, 1)),
    "three": Options(context=9000, parallel=2, shares=(1, 3, 2)),
}
BASES = [
    *("llama-3.1-8b", "smollm2-360m", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "gemma-2-2b"),
    *("gemma-3-4b", "phi-4", "granite-3.1-8b", "gpt-oss-20b", "olmoe-7b"),
]
SEEDS = [11, pytest.param(12, marks=pytest.mark.long)]
_SQUARE = frozenset({"olmoe", "phi3", "qwen2"})
"""All heads together are as wide as a token."""
_ALIKE = frozenset({"olmoe", "llama"})
"""Experts are as wide as the model says of its feed-forward."""


def fresh(base: str, seed: int) -> Shape:
    """Give a shape of the architecture with sizes of its own."""
    dice, like = random.Random(f"{base} {seed}"), SHAPES[base]  # noqa: S311 the same each time
    groups, head = dice.choice([1, 2, 3, 4, 6]), dice.choice([64, 96, 128, 160, 192])
    heads_kv = dice.choice([1, 2, 3, 5, 8])
    if base == "olmoe-7b" or like.heads == like.heads_kv:
        groups = 1
    width = 64 * dice.randint(6, 40)
    if like.architecture in _SQUARE:
        width = head * heads_kv * groups
    forward, expert = 64 * dice.randint(10, 90), 64 * dice.randint(4, 30)
    return replace(
        like,
        layers=dice.randint(5, 19),
        width=width,
        heads=heads_kv * groups,
        heads_kv=heads_kv,
        head=head,
        forward=expert if like.architecture in _ALIKE and like.experts else forward,
        vocabulary=dice.randint(3000, 90_000),
        experts=dice.choice([6, 12, 20]) if like.experts else 0,
        used=dice.randint(1, 5) if like.experts else 0,
        expert_forward=expert if like.experts else 0,
        weights=Q8_0,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("base", BASES)
def test_fresh_sizes_are_what_llama_cpp_says(base: str, seed: int, tmp_path: Path) -> None:
    shape = fresh(base, seed)
    path = write_gguf(tmp_path / "m.gguf", metadata(shape), tensors(shape))
    assert FOLDER is not None
    meter, estimator = Meter(FOLDER), estimator_of(path)
    for key, options in SETS.items():
        measured, found = meter.measure(Subject(path, f"{base} {seed}"), options), estimator(options)
        for number, truth in enumerate((*measured.devices, measured.host)):
            host = number == len(measured.devices)
            for kind in COUNTED:
                parts = [one for one in found.addends if one.kind == kind and (one.place == "host") == host]
                agree([one for one in parts if host or one.device == number], truth.of(kind), f"{key} {kind} {number}")


@pytest.mark.parametrize("base", ["llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "phi-4"])
def test_fresh_sizes_divided_within_tensors(base: str, tmp_path: Path) -> None:
    shape = replace(fresh(base, 13), layers=4, vocabulary=500)
    path = write_gguf(tmp_path / "m.gguf", metadata(shape), tensors(shape))
    done = [compare_at(path, replace(SMALL, shares=shares)) for shares in ((1, 1), (3, 5), (1, 2, 1))]
    assert any(done)
