"""Projectors against llama.cpp's own figure: weights and the graph of one image, never less than it says."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from estimate.measuring import libraries
from paddock.core.beside import projector
from paddock.core.estimate import Options
from paddock.core.gguf import GgufMetadata, read_gguf
from support.gguf_writer import Spec, Typed, Value, write_gguf

FOLDER = libraries()
PROGRAM = Path(__file__).parent / "mtmd.py"
pytestmark = pytest.mark.skipif(
    FOLDER is None or not (FOLDER / "libmtmd.so").exists(), reason="llama.cpp's libmtmd is not built: make build"
)


class Shape(NamedTuple):
    layers: int
    width: int
    forward: int
    heads: int
    image: int
    patch: int
    output: int


SHAPES = {
    "gemma-3-4b": Shape(27, 1152, 4304, 16, 896, 14, 2560),
    "wide patches": Shape(4, 768, 3072, 12, 512, 16, 1024),
    "small image": Shape(24, 1024, 4096, 16, 448, 14, 2560),
    "heads without a kernel": Shape(4, 1152, 4304, 24, 448, 14, 1024),
}


def floats(*numbers: float) -> Typed:
    return Typed(9, struct.pack("<IQ", 6, len(numbers)) + struct.pack(f"<{len(numbers)}f", *numbers))


def write(path: Path, shape: Shape) -> GgufMetadata:
    """Write a projector of Gemma 3's kind without its data, and give its header."""
    values: dict[str, Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": shape.image,
        "clip.vision.patch_size": shape.patch,
        "clip.vision.embedding_length": shape.width,
        "clip.vision.feed_forward_length": shape.forward,
        "clip.vision.block_count": shape.layers,
        "clip.vision.projection_dim": shape.output,
        "clip.vision.attention.head_count": shape.heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": floats(0.5, 0.5, 0.5),
        "clip.vision.image_std": floats(0.5, 0.5, 0.5),
    }
    width = shape.width
    specs = [
        Spec("v.patch_embd.weight", (shape.patch, shape.patch, 3, width)),
        Spec("v.patch_embd.bias", (width,)),
        Spec("v.position_embd.weight", (width, (shape.image // shape.patch) ** 2)),
        Spec("v.post_ln.weight", (width,)),
        Spec("v.post_ln.bias", (width,)),
        Spec("mm.input_projection.weight", (shape.output, width)),
        Spec("mm.soft_emb_norm.weight", (width,)),
    ]
    for layer in range(shape.layers):
        square = {f"attn_{name}": (width, width) for name in ("q", "k", "v", "out")}
        for name, size in {**square, "ffn_up": (width, shape.forward), "ffn_down": (shape.forward, width)}.items():
            specs += [Spec(f"v.blk.{layer}.{name}.weight", size, 1), Spec(f"v.blk.{layer}.{name}.bias", size[1:])]
        specs += [
            Spec(f"v.blk.{layer}.{name}.{part}", (width,)) for name in ("ln1", "ln2") for part in ("weight", "bias")
        ]
    write_gguf(path, values, specs)
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read_gguf(read, path.stat().st_size)


@pytest.mark.parametrize("name", SHAPES)
def test_a_projector_never_takes_more_than_was_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    header = write(path, SHAPES[name])
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
