"""Writes small or sparse GGUF files for tests: valid ones, and wrong ones of every kind.

`write_model` is the usual entry: a file with the header of a real shape and a hole instead of weights, so that a
model of any size takes a few kilobytes of disk.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paddock.core.ggml import ELEMENTS

ALIGNMENT = 32
F32, F16, Q8_0, Q4_K = 0, 1, 8, 12


class Typed(NamedTuple):
    """A metadata value of a stated GGUF type, where the Python type does not say enough; data is as in the file."""

    type: int
    data: bytes


Value = bool | int | float | str | Typed | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]


class Spec(NamedTuple):
    """A tensor: name, shape (contiguous dimension first) and ggml type."""

    name: str
    shape: tuple[int, ...]
    type: int = F32

    @property
    def bytes(self) -> int:
        """Bytes of its data."""
        elements = 1
        for size in self.shape:
            elements *= size
        return elements // ELEMENTS[self.type].block * ELEMENTS[self.type].bytes


def encode_text(text: str | bytes) -> bytes:
    """Give a GGUF string."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def encode_value(value: Value) -> bytes:
    """Give the type and the value: bool, uint32 (or int32 if negative, uint64 if large), float32, string, array."""
    if isinstance(value, Typed):
        return struct.pack("<I", value.type) + value.data
    if isinstance(value, (bool, int, float, str)):
        kind, data = _scalar(value)
        return struct.pack("<I", kind) + data
    encoded = [_scalar(element) for element in value]
    kind = encoded[0][0] if encoded else 4
    return struct.pack("<IIQ", 9, kind, len(encoded)) + b"".join(data for _, data in encoded)


def _scalar(value: bool | float | str) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, str):
        return 8, encode_text(value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if value < 0:
        return 5, struct.pack("<i", value)
    return (4, struct.pack("<I", value)) if value < 2**32 else (10, struct.pack("<Q", value))


def encode_tensor(spec: Spec, offset: int) -> bytes:
    """Give a row of the tensor table."""
    shape = struct.pack(f"<{len(spec.shape)}Q", *spec.shape)
    return encode_text(spec.name) + struct.pack("<I", len(spec.shape)) + shape + struct.pack("<IQ", spec.type, offset)


def header(metadata: Mapping[str, Value], tensors: Sequence[Spec] = (), version: int = 3) -> bytes:
    """Give everything before the data section, padded to its start."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(encode_text(key) + encode_value(value) for key, value in metadata.items())
    offset = 0
    for spec in tensors:
        head += encode_tensor(spec, offset)
        offset += _padded(spec.bytes)
    return head + b"\0" * (-len(head) % ALIGNMENT)


def data_bytes(tensors: Sequence[Spec]) -> int:
    """Give the size of the data section."""
    return sum(_padded(spec.bytes) for spec in tensors)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Model:
    """The shape of a dense model; the default is a tiny llama of some kilobytes."""

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    heads_kv: int = 2
    head_width: int = 16
    forward: int = 128
    vocabulary: int = 96
    context: int = 2048
    type: int = F16
    tied: bool = False
    extra: Mapping[str, Value] = field(default_factory=dict)
    """Further or other metadata, by full key."""

    def metadata(self) -> dict[str, Value]:
        """Give the metadata."""
        prefix = self.architecture
        return {
            "general.architecture": prefix,
            "general.name": f"Test {prefix}",
            f"{prefix}.block_count": self.layers,
            f"{prefix}.context_length": self.context,
            f"{prefix}.embedding_length": self.width,
            f"{prefix}.feed_forward_length": self.forward,
            f"{prefix}.attention.head_count": self.heads,
            f"{prefix}.attention.head_count_kv": self.heads_kv,
            f"{prefix}.attention.key_length": self.head_width,
            f"{prefix}.attention.value_length": self.head_width,
            f"{prefix}.attention.layer_norm_rms_epsilon": 1e-6,
            "tokenizer.ggml.model": "no_vocab",
            **self.extra,
        }

    def tensors(self) -> list[Spec]:
        """Give the tensor table."""
        width, kind = self.width, self.type
        specs = [Spec("token_embd.weight", (width, self.vocabulary), kind), Spec("output_norm.weight", (width,))]
        if not self.tied:
            specs.append(Spec("output.weight", (width, self.vocabulary), kind))
        for layer in range(self.layers):
            specs += [
                Spec(f"blk.{layer}.attn_norm.weight", (width,)),
                Spec(f"blk.{layer}.attn_q.weight", (width, self.heads * self.head_width), kind),
                Spec(f"blk.{layer}.attn_k.weight", (width, self.heads_kv * self.head_width), kind),
                Spec(f"blk.{layer}.attn_v.weight", (width, self.heads_kv * self.head_width), kind),
                Spec(f"blk.{layer}.attn_output.weight", (self.heads * self.head_width, width), kind),
                Spec(f"blk.{layer}.ffn_norm.weight", (width,)),
                Spec(f"blk.{layer}.ffn_gate.weight", (width, self.forward), kind),
                Spec(f"blk.{layer}.ffn_up.weight", (width, self.forward), kind),
                Spec(f"blk.{layer}.ffn_down.weight", (self.forward, width), kind),
            ]
        return specs


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Sequence[Spec] = ()) -> Path:
    """Write a valid file with these contents and a hole instead of the weights."""
    head = header(metadata, tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + data_bytes(tensors))
    return path


def write_model(path: Path, model: Model | None = None) -> Path:
    """Write a valid file of a model, by default the tiny one."""
    chosen = model or Model()
    return write_gguf(path, chosen.metadata(), chosen.tensors())


def write_truncated(path: Path, model: Model | None = None, missing: int = 1) -> Path:
    """Write a model whose last bytes are missing."""
    write_model(path, model)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - missing)
    return path


def write_not_gguf(path: Path) -> Path:
    """Write a file of another format."""
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    return path


def write_split(folder: Path, stem: str, count: int, model: Model | None = None) -> list[Path]:
    """Write a model as `count` parts, its tensors dealt out in order; gives their paths, the first one first."""
    chosen = model or Model()
    tensors = chosen.tensors()
    share = -(-len(tensors) // count)
    paths = []
    for number in range(count):
        split: dict[str, Value] = {  # llama.cpp insists on these types
            "split.no": Typed(2, struct.pack("<H", number)),
            "split.count": Typed(2, struct.pack("<H", count)),
            "split.tensors.count": Typed(5, struct.pack("<i", len(tensors))),
        }
        metadata = {**chosen.metadata(), **split} if number == 0 else split
        path = folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        paths.append(write_gguf(path, metadata, tensors[number * share : (number + 1) * share]))
    return paths
