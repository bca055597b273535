"""Records the graphs that llama.cpp builds for a model, one for each class of options."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from estimate.derive.derive import Recording
from paddock.api.report import HeaderSummary
from paddock.core.architectures import CACHELESS
from paddock.core.gguf import read_gguf
from paddock.core.summary import summarize

PROGRAM: Final = Path(__file__).parent.parent / "llama.py"
SOURCE: Final = Path(__file__).parent / "record.c"


@dataclass(frozen=True)
class Sizes:
    """Numbers of options that differ from each other and from those of the model, so that none is mistaken."""

    tokens: int
    cells: int
    slots: int


SIZES: Final = (
    Sizes(370, 9984, 5),
    Sizes(273, 11_008, 7),
    Sizes(207, 12_544, 3),
    Sizes(341, 14_080, 11),
    Sizes(405, 15_104, 9),
)
"""Each context is longer than the windows that models have built in."""
POOLED: Final = frozenset({"gemma3", "llama", "qwen2", "qwen3", "qwen3vl"})
"""Architectures of text models that files of embeddings or ranks are published with."""
GIVEN_UP: Final = "given up"
NONE, MEAN, LAST, RANK = 0, 1, 3, 4
"""Pooling, by llama.cpp's numbers."""


def build(folder: Path, headers: Path) -> Path:
    """Compile the recorder against ggml's headers; gives the library."""
    library = folder / "record.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O2", "-w", f"-I{headers}", str(SOURCE), "-o", str(library)], check=True
    )
    return library


def classes(sizes: Sizes, summary: HeaderSummary) -> list[dict[str, Any]]:
    """Give option sets of every class: FlashAttention, type of the cache, slots, embeddings and how they are pooled."""
    found = []
    pooled = summary.architecture in POOLED or summary.architecture in CACHELESS
    modes = [(False, NONE), *((True, pooling) for pooling in ((NONE, MEAN, LAST, RANK) if pooled else (NONE,)))]
    kinds = [("auto", "f16"), ("auto", "q8_0"), ("off", "f16")]
    if summary.recurrent and any(summary.head_count_kv):  # between other layers attention may lie on the other side
        kinds.append((GIVEN_UP, "f16"))
    for flash, kind in kinds:
        for slots, unified in ((1, False), (sizes.slots, True), (sizes.slots, False)):
            found += [
                {
                    "context": sizes.cells * slots,
                    "parallel": slots,
                    "unified": unified,
                    "cacheTypeK": kind,
                    "cacheTypeV": kind,
                    "batch": 2048,
                    "ubatch": sizes.tokens,
                    "flashAttention": flash,
                    "embeddings": embeddings,
                    "pooling": pooling,
                    "gpuLayers": -1,
                }
                for embeddings, pooling in modes
            ]
    return found


def record(libraries: Path, recorder: Path, model: Path, number: int) -> list[Recording]:
    """Record a model of a set of sizes; what llama.cpp refuses is left out, what ends it too."""
    sizes = SIZES[(number - 1) % len(SIZES)]
    with model.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        summary = summarize([read_gguf(read, model.stat().st_size)])
    asked = classes(sizes, summary)
    own = [one for one in asked if one["flashAttention"] == GIVEN_UP]
    found = []
    for left in ([one for one in asked if one not in own], own):
        found += _recorded(libraries, recorder, model, summary, left)
    return found


def _recorded(
    libraries: Path, recorder: Path, model: Path, summary: HeaderSummary, left: list[dict[str, Any]]
) -> Iterator[Recording]:
    while left:
        answers, lines = _run(libraries, recorder, model, left)
        for asked, answer in zip(left, answers, strict=False):
            if "error" not in answer:
                line = lines.pop(0)
                if json.loads(line)["sizes"] != [answer["device"][2], answer["host"][2]]:
                    raise RuntimeError(f"{model.name}: the recorded graph is not the one that was measured")
                yield Recording(summary, asked, line)
        left = left[len(answers) + 1 :]


def save(path: Path, recordings: list[Recording]) -> None:
    """Write recordings of a model."""
    rows = [[one.summary.model_dump(mode="json"), one.asked, one.line] for one in recordings]
    path.write_bytes(gzip.compress(json.dumps(rows).encode(), 1, mtime=0))


def load(path: Path) -> list[Recording]:
    """Read recordings of a model."""
    rows = json.loads(gzip.decompress(path.read_bytes()))
    return [Recording(HeaderSummary.model_validate(summary), asked, line) for summary, asked, line in rows]


def _run(
    libraries: Path, recorder: Path, model: Path, asked: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "graphs"
        lines.touch()
        own = {"LD_LIBRARY_PATH": str(libraries), "LD_PRELOAD": str(recorder), "RECORD": str(lines)}
        if any(one["flashAttention"] == GIVEN_UP for one in asked):
            own["GIVE_UP"] = "1"
            asked = [{**one, "flashAttention": "auto"} for one in asked]
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), str(libraries), str(model)],
            input="".join(json.dumps(one) + "\n" for one in asked),
            capture_output=True,
            text=True,
            env={**os.environ, **own, "GGML_NO_BACKTRACE": "1"},
            check=False,
        )
        return [json.loads(line) for line in ended.stdout.splitlines()], lines.read_text().splitlines()
