"""Records the graphs that llama.cpp builds for a model, one for each class of options."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from estimate.derive.derive import Recording
from estimate.options import options_of
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
    Sizes(368, 1280, 4),
    Sizes(272, 1792, 3),
    Sizes(208, 2304, 5),
    Sizes(336, 2816, 2),
    Sizes(400, 3328, 6),
)


def build(folder: Path, headers: Path) -> Path:
    """Compile the recorder against ggml's headers; gives the library."""
    library = folder / "record.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O2", "-w", f"-I{headers}", str(SOURCE), "-o", str(library)], check=True
    )
    return library


def classes(sizes: Sizes) -> list[dict[str, Any]]:
    """Give option sets of every class: FlashAttention, type of the cache, slots, embeddings."""
    found = []
    for flash, kind in (("auto", "f16"), ("auto", "q8_0"), ("off", "f16")):
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
                    "gpuLayers": -1,
                }
                for embeddings in (False, True)
            ]
    return found


def record(libraries: Path, recorder: Path, model: Path, sizes: Sizes) -> list[Recording]:
    """Record a model; what llama.cpp refuses is left out, what ends it too."""
    with model.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        summary = summarize([read_gguf(read, model.stat().st_size)])
    left, found = classes(sizes), []
    while left:
        answers, lines = _run(libraries, recorder, model, left)
        for asked, answer in zip(left, answers, strict=False):
            if "error" not in answer:
                line = lines.pop(0)
                if json.loads(line)["sizes"] != [answer["device"][2], answer["host"][2]]:
                    raise RuntimeError(f"{model.name}: the recorded graph is not the one that was measured")
                found.append(Recording(summary, options_of(asked), line))
        left = left[len(answers) + 1 :]
    return found


def _run(
    libraries: Path, recorder: Path, model: Path, asked: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "graphs"
        lines.touch()
        own = {"LD_LIBRARY_PATH": str(libraries), "LD_PRELOAD": str(recorder), "RECORD": str(lines)}
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), str(libraries), str(model)],
            input="".join(json.dumps(one) + "\n" for one in asked),
            capture_output=True,
            text=True,
            env={**os.environ, **own, "GGML_NO_BACKTRACE": "1"},
            check=False,
        )
        return [json.loads(line) for line in ended.stdout.splitlines()], lines.read_text().splitlines()
