"""Sizes that nothing was derived from, of every architecture of llama.cpp's own test models, against llama.cpp.

`fresh.tar.xz` holds headers that derive/variants.py made with values of their own: sets 8 and 9, the second one with
recurrent layers that follow each other; 10 has windows of no token in models that usually have windows; 11 is the one
model whose number of layers decides over its windows; 12 has heads that quantized caches do not rotate, or in pieces.
"""

import tarfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from estimate.errors import PLACES, compute
from estimate.measuring import asked, libraries, write_sparse
from estimate.options import DEFAULTS, options_of
from estimate.test_tensor_split import agree
from paddock.core.estimate import estimate
from paddock.core.gguf import read_gguf
from paddock.core.summary import summarize

FRESH: Final = Path(__file__).parent / "fresh.tar.xz"
"""Headers by set of sizes and model; each ends with the size of its file."""
FOLDER = libraries()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
_SLOTS: Final = {"context": 8500, "parallel": 3, "ubatch": 390}
SETS: Final[dict[str, dict[str, Any]]] = {
    "one": {"context": 5000},
    "slots": _SLOTS,
    "unified": {**_SLOTS, "unified": True},
    "q8": {**_SLOTS, "cacheTypeK": "q8_0", "cacheTypeV": "q8_0"},
    "wide": {"context": 3000, "cacheTypeK": "f32", "cacheTypeV": "f32"},
    "plain": {"context": 3000, "ubatch": 300, "flashAttention": "off"},
    "plain slots": {**_SLOTS, "flashAttention": "off"},
    "embedding": {"context": 5000, "embeddings": True, "batch": 400, "pooling": 0},
    "output": {"context": 7000, "parallel": 2, "gpuLayers": 1},
    "partial": {"context": 6000, "gpuLayers": 3},
    "more": {"context": 6000, "gpuLayers": 5},
    "partial slots": {**_SLOTS, "gpuLayers": 4},
    "plain partial": {**_SLOTS, "flashAttention": "off", "gpuLayers": 3},
    "no device": {"context": 5000, "gpuLayers": 0},
    "experts": {"context": 5000, "cpuMoe": 2},
}
OFTEN: Final = frozenset(
    {
        *(
            "arctic",
            "bailingmoe3",
            "deepseek32",
            "granitehybrid",
            "hrm_text",
            "jamba",
            "kimi-k3",
            "lfm2",
            "lfm2moe",
            "llama4",
            "mistral4",
        ),
        *("muse-glimmer", "nemotron_h", "plamo2", "plamo3", "qwen35", "qwen4exp", "smollm3"),
    }
)
"""Compared in every run: here layers differ most, heads are wider than a token, or each layer keeps something."""
WITHIN: Final = 0.01


@cache
def models() -> dict[str, tuple[bytes, int]]:
    found = {}
    with tarfile.open(FRESH) as archive:
        for one in archive:
            file = archive.extractfile(one)
            assert file is not None
            data = file.read()
            found[one.name] = data[:-8], int.from_bytes(data[-8:], "little")
    return found


def _names() -> list[Any]:
    every = sorted(models())
    often = [name for name in every if name.partition("/")[2].rpartition("-")[0] in OFTEN]
    return [*often, *(pytest.param(name, marks=pytest.mark.long) for name in every if name not in often)]


@pytest.mark.parametrize("name", _names())
def test_fresh_sizes_are_never_below_llama_cpp_and_equal_where_they_say_so(name: str, tmp_path: Path) -> None:
    head, size = models()[name]
    path = write_sparse(tmp_path / "m.gguf", head, size)
    summary = summarize([read_gguf(lambda offset, length: head[offset : offset + length], size)])
    assert FOLDER is not None
    sets = [{**DEFAULTS, **told} for told in SETS.values()]
    answers = asked(FOLDER, path, sets)
    assert any("error" not in one for one in answers)
    for key, told, truth in zip(SETS, sets, answers, strict=False):
        if "error" in truth:
            continue
        found = estimate(summary, options_of(told))
        for place in PLACES:
            weights, cache_, buffer = truth[place]
            for kind, known in (("weights", weights), ("kvCache", cache_)):
                parts = [one for one in found.addends if (one.place, one.kind) == (place, kind)]
                agree(parts, known, f"{key} {kind} {place}")
            value, exact = compute(found, place)
            assert value >= buffer * (1 - WITHIN if exact else 1), (key, place, value, buffer)
            if exact:
                assert value <= buffer * (1 + WITHIN), (key, place, value, buffer)
