"""Projectors against llama.cpp's own figure: weights and the graph of one image, never less than it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from estimate.measuring import libraries
from paddock.core.beside import projector
from paddock.core.estimate import Options
from support.companion_writer import Shape, write_projector

FOLDER = libraries()
PROGRAM = Path(__file__).parent / "mtmd.py"
pytestmark = pytest.mark.skipif(
    FOLDER is None or not (FOLDER / "libmtmd.so").exists(), reason="llama.cpp's libmtmd is not built: make build"
)


SHAPES = {
    "gemma-3-4b": Shape(27, 1152, 4304, 16, 896, 14, 2560),
    "wide patches": Shape(4, 768, 3072, 12, 512, 16, 1024),
    "small image": Shape(24, 1024, 4096, 16, 448, 14, 2560),
    "heads without a kernel": Shape(4, 1152, 4304, 24, 448, 14, 1024),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_projector_never_takes_more_than_was_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    header = write_projector(path, SHAPES[name])
    for flash, options in ((-1, Options()), (0, Options(flash_attention="off"))):
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(FOLDER), str(path), str(flash)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = projector(header, options)
        weights = sum(one.bytes for one in found if one.kind == "weights")
        told, measured = sum(one.bytes for one in found), int(done.stdout.split()[-1])
        assert weights < measured <= told, (flash, weights, measured, told)
