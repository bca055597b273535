"""Rewrites models as converters write them: no scales, experts' gate and up apart, perhaps no biases or fused keys.

`python -m estimate.derive.published FROM TO [bare|fused]`; llama.cpp's own test program writes every optional tensor.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from paddock.core.ggml import ELEMENTS

_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_OPTIONAL: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "ffn_gate", "ffn_up", "ffn_down")
_CLASSIFIER: Final = "cls"
_OPTIONAL_NORMS: Final = ("attn_norm", "ffn_norm")

Row = tuple[str, tuple[int, ...], int]


def read(data: bytes) -> tuple[int, bytes, list[Row]]:
    """Give the number of metadata entries, their bytes, and the tensor table."""
    tensors, entries = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(entries):
        (length,) = struct.unpack_from("<Q", data, at)
        (kind,) = struct.unpack_from("<I", data, at + 8 + length)
        at = _after(data, at + 12 + length, kind)
    metadata, rows = data[24:at], []
    for _ in range(tensors):
        (length,) = struct.unpack_from("<Q", data, at)
        name = data[at + 8 : at + 8 + length].decode()
        (count,) = struct.unpack_from("<I", data, at + 8 + length)
        shape = struct.unpack_from(f"<{count}Q", data, at + 12 + length)
        at += 12 + length + 8 * count
        rows.append((name, shape, struct.unpack_from("<I", data, at)[0]))
        at += 12
    return entries, metadata, rows


def _after(data: bytes, at: int, kind: int) -> int:
    if kind == _STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != _ARRAY:
        return at + _SIZES[kind]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element in _SIZES:
        return at + _SIZES[element] * int(count)
    for _ in range(count):
        at = _after(data, at, element)
    return at


def write(path: Path, entries: int, metadata: bytes, rows: list[Row]) -> None:
    """Write a header and a hole."""
    offset, table = 0, b""
    for name, shape, kind in rows:
        table += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)
        size = ELEMENTS[kind].row(shape[0])
        for length in shape[1:]:
            size *= length
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), entries) + metadata + table
    head += b"\0" * (-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def rewrite(rows: list[Row], *, bare: bool, fused: bool) -> Iterator[Row]:
    """Give the table as a converter would write it."""
    held: dict[tuple[str, str], list[Row]] = {}
    for name, shape, kind in rows:
        before, _, suffix = name.rpartition(".")
        last = before.rpartition(".")[2]
        if suffix in {"scale", "input_scale"}:
            continue
        if bare and name.partition(".")[0] == _CLASSIFIER:
            continue
        if bare and suffix == "bias" and last in _OPTIONAL + _OPTIONAL_NORMS:
            continue
        if last == "ffn_gate_up_exps":
            half = (shape[0], shape[1] // 2, *shape[2:])
            yield name.replace("gate_up", "gate"), half, kind
            yield name.replace("gate_up", "up"), half, kind
        elif fused and last in {"attn_q", "attn_k", "attn_v"}:
            group = held.setdefault((before.rpartition(".")[0], suffix), [])
            group.append((name, shape, kind))
            if len(group) == 3:
                total = sum(row[1][-1] for row in group)
                yield f"{before.rpartition('.')[0]}.attn_qkv.{suffix}", (*shape[:-1], total), kind
        else:
            yield name, shape, kind


def main() -> int:
    """Do what the arguments say."""
    how = sys.argv[3:]
    write_all(Path(sys.argv[1]), Path(sys.argv[2]), bare="bare" in how, fused="fused" in how)
    return 0


def write_all(source: Path, out: Path, *, bare: bool, fused: bool) -> None:
    """Rewrite every model of a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.gguf")):
        with path.open("rb") as file:
            entries, metadata, rows = read(file.read(2**22))
        write(out / path.name, entries, metadata, list(rewrite(rows, bare=bare, fused=fused)))


if __name__ == "__main__":
    sys.exit(main())
