"""Writes what serves beside a model, for tests: projectors and adapters, with a hole instead of weights."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from paddock.core.gguf import GgufMetadata, read_gguf
from support.gguf_writer import Model, Spec, Typed, Value, write_gguf

if TYPE_CHECKING:
    from pathlib import Path


class Shape(NamedTuple):
    """Of a projector of Gemma 3's kind."""

    layers: int
    width: int
    forward: int
    heads: int
    image: int
    patch: int
    output: int


def floats(*numbers: float) -> Typed:
    return Typed(9, struct.pack("<IQ", 6, len(numbers)) + struct.pack(f"<{len(numbers)}f", *numbers))


def write_projector(path: Path, shape: Shape) -> GgufMetadata:
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


TINY = Shape(1, 64, 128, 4, 56, 14, 64)
"""A projector of a small picture, for models of the width that `Model` has by default."""


def write_adapter(path: Path, model: Model, names: tuple[str, ...] = ("attn_q", "ffn_down"), rank: int = 4) -> Path:
    """Write a LoRA adapter of a model."""
    values: dict[str, Value] = {
        "general.architecture": model.architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
    }
    specs = []
    for one in model.tensors():
        parts = one.name.split(".")
        if parts[0] == "blk" and parts[2] in names:
            wide, out = one.shape[:2]
            specs += [Spec(f"{one.name}.lora_a", (wide, rank)), Spec(f"{one.name}.lora_b", (rank, out))]
    return write_gguf(path, values, specs)
