"""Measures the reader of headers and the estimate, beside the `gguf` package: `python -m bench.header`.

Needs neither a cluster nor a GPU. The package is in the dependency group `bench`; without it only Paddock is measured.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figures
from estimate.corpus import SHAPES
from estimate.corpus import metadata as shape_metadata
from estimate.corpus import tensors as shape_tensors
from paddock.core.estimate import Options, estimate
from paddock.core.gguf import GgufMetadata, read_gguf
from paddock.core.summary import summarize
from support.gguf_writer import Model, Spec, Value, write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 7
MEGABYTE = 1e6
MILLISECONDS = 1000
TOKENS = 262_144
TENSORS = 10_000
PEAK = """
def most():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
{load}
before = most()
{read}
print((most() - before) * 1024)
"""


def files(folder: Path) -> dict[str, Path]:
    """Write the files: a small one, one with a large vocabulary, one with many tensors."""
    vocabulary: dict[str, Value] = {
        "tokenizer.ggml.tokens": [f"token{index}" for index in range(TOKENS)],
        "tokenizer.ggml.merges": [f"t {index:06}" for index in range(TOKENS)],
    }
    many = [Spec(f"blk.{index // 20}.part_{index % 20}.weight", (256, 4)) for index in range(TENSORS)]
    small, large = Model(), Model(extra=vocabulary)
    return {
        "small": write_gguf(folder / "small.gguf", small.metadata(), small.tensors()),
        "vocabulary": write_gguf(folder / "vocabulary.gguf", large.metadata(), large.tensors()),
        "tensors": write_gguf(folder / "tensors.gguf", small.metadata(), [*small.tensors(), *many]),
    }


def read(path: Path) -> GgufMetadata:
    """Read a header as the agent does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_gguf(lambda offset, length: os.pread(descriptor, length, offset), path.stat().st_size)
    finally:
        os.close(descriptor)


def milliseconds(work: Callable[[], object], runs: int = RUNS) -> float:
    """Give the processor time of the best of some runs: other work on the machine only adds to it."""
    spent = []
    for _ in range(runs):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent) * MILLISECONDS


def peak(load: str, doing: str) -> float:
    """Give the megabytes that a fresh process takes at most for something, above what it has loaded."""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PEAK.format(load=load, read=doing)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / MEGABYTE


def measure_header(figures: Figures) -> None:
    """Measure the reader, then the estimate."""
    with tempfile.TemporaryDirectory() as folder:
        made = files(Path(folder))
        for name, path in made.items():
            figures.put(f"header_{name}", milliseconds(partial(read, path)))
        own = "from bench.header import read; from pathlib import Path"
        figures.put("header_memory", peak(own, f"read(Path({str(made['vocabulary'])!r}))"))
        beside_package(made, figures)
    spent = []
    for name, shape in SHAPES.items():
        summary = summarize([header_of(name)])
        options = Options(context=min(shape.context, 32_768))
        estimate(summary, options)
        spent.append(milliseconds(partial(estimate, summary, options)))
    figures.put("estimate_median", statistics.median(spent))
    figures.put("estimate_slowest", max(spent))


def header_of(name: str) -> GgufMetadata:
    """Give the header of a published shape."""
    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPES[name]
        return read(write_gguf(Path(folder) / "m.gguf", shape_metadata(shape), shape_tensors(shape)))


def beside_package(made: dict[str, Path], figures: Figures) -> None:
    """Measure the package `gguf` on the same files."""
    if importlib.util.find_spec("gguf") is None:
        print("the package gguf is not installed (dependency group bench), so nothing stands beside")  # noqa: T201
        return
    from gguf import GGUFReader  # noqa: PLC0415 it may be absent

    for name, path in made.items():
        figures.put(f"gguf_{name}", milliseconds(partial(GGUFReader, path), runs=1))
    figures.put("gguf_memory", peak("from gguf import GGUFReader", f"GGUFReader({str(made['vocabulary'])!r})"))


if __name__ == "__main__":
    measure_header(Figures())
