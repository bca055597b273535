"""Estimates of the published shapes beside gguf-parser-go's, times and errors: `python -m bench.beside`.

llama.cpp's own numbers are those of the committed table, with 4096 tokens for one request. gguf-parser-go is compiled
from its Go module (tests/bench/parser); without Go, or without the module, only Paddock is measured.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.header import milliseconds, read
from estimate import table
from estimate.corpus import SHAPES
from estimate.corpus import metadata as shape_metadata
from estimate.corpus import tensors as shape_tensors
from estimate.measuring import write_sparse
from estimate.options import DEFAULTS
from estimate.table import Measured
from paddock.core.estimate import MemoryEstimate, estimate
from paddock.core.summary import summarize
from support.gguf_writer import write_gguf

SOURCE = Path(__file__).parent / "parser"
SET = "one"
"""The option set of the table."""


class Row(NamedTuple):
    """What one model was said to need on the device, against what it needs."""

    name: str
    truth: int
    own: int
    own_milliseconds: float
    other: int | None
    other_milliseconds: float | None


def compiled(folder: Path) -> Path | None:
    """Compile the program around gguf-parser-go; None where that cannot be done."""
    if shutil.which("go") is None:
        return None
    program = folder / "parser"
    done = subprocess.run(["go", "build", "-o", str(program), "."], cwd=SOURCE, capture_output=True, check=False)
    return program if done.returncode == 0 else None


def own_estimate(path: Path) -> MemoryEstimate:
    """Read the header and estimate, from nothing."""
    return estimate(summarize([read(path)]), table.options(SET))


def device(found: MemoryEstimate) -> int:
    """Give what the model itself needs on the device."""
    return sum(one.bytes for one in found.addends if one.place == "device" and one.kind != "overhead")


def row(name: str, folder: Path, program: Path | None) -> Row | None:
    """Estimate one model with both."""
    measured = table.measured(name)[SET]
    if not isinstance(measured, Measured):
        return None
    path = folder / f"{name}.gguf"
    if name in SHAPES:
        write_gguf(path, shape_metadata(SHAPES[name]), shape_tensors(SHAPES[name]))
    else:
        write_sparse(path, *table.head(name))
    other: dict[str, float] = {}
    if program is not None:
        done = subprocess.run(
            [str(program), str(path), str(DEFAULTS["context"])], capture_output=True, text=True, check=False
        )
        other = json.loads(done.stdout) if done.returncode == 0 else {}
    own = device(own_estimate(path))
    spent = milliseconds(partial(own_estimate, path), runs=3)
    path.unlink()
    needed = None if not other else int(other["device"])
    return Row(name, sum(measured.device), own, spent, needed, other.get("milliseconds"))


def text(rows: list[Row]) -> str:
    """Give the table in Markdown, with a last line of medians."""
    lines = ["| model | llama.cpp | Paddock | gguf-parser-go |", "|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.truth / 2**20:.0f} MiB | {_off(one.own, one)} | {_off(one.other, one)} |" for one in rows
    ]
    own = statistics.median(abs(one.own - one.truth) / one.truth for one in rows)
    others = [abs(one.other - one.truth) / one.truth for one in rows if one.other is not None]
    said = f"{statistics.median(others):.1%}, at most {max(others):.1%}" if others else "not measured"
    worst = max(abs(one.own - one.truth) / one.truth for one in rows)
    lines.append(f"| median error | | {own:.1%}, at most {worst:.1%} | {said} |")
    times = [one.other_milliseconds for one in rows if one.other_milliseconds is not None]
    taken = f"{statistics.median(times):.1f} ms" if times else "not measured"
    mine = statistics.median(one.own_milliseconds for one in rows)
    lines.append(f"| header and estimate, median | | {mine:.1f} ms | {taken} |")
    return "\n".join(lines)


def _off(value: int | None, one: Row) -> str:
    return "-" if value is None else f"{(value - one.truth) / one.truth:+.1%}"


def measure_beside() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = compiled(folder)
        if program is None:
            print("gguf-parser-go could not be compiled, so it does not stand beside")  # noqa: T201
        rows = [found for name in table.published() if (found := row(name, folder, program)) is not None]
    print(text(rows))  # noqa: T201


if __name__ == "__main__":
    measure_beside()
