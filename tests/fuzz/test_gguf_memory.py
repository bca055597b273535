"""The largest headers that the GGUF reader accepts take little memory."""

import struct
import tracemalloc

import pytest

from paddock.core import gguf
from paddock.core.gguf import GgufError, read_gguf
from support.gguf_writer import Spec, encode_tensor, encode_text, encode_value


def start(tensors: int, keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


def one_key(value: bytes) -> bytes:
    return start(0, 1) + encode_text("k") + value


def many_tensors(count: int) -> bytes:
    rows = (encode_tensor(Spec(f"{index:063}", (1000, 2000, 1, 4)), index * 32_000_000) for index in range(count))
    return start(count, 0) + b"".join(rows)


HOSTILE: dict[str, bytes] = {
    "keys": start(0, 4096) + b"".join(encode_text(f"{i:01000}") + encode_value("v" * 1000) for i in range(4096)),
    "strings": one_key(struct.pack("<IIQ", 9, 8, 100_000) + bytes(gguf.MAX_HEADER)),
    "numbers": one_key(struct.pack("<IIQ", 9, 0, 60_000_000) + bytes(gguf.MAX_HEADER)),
    "tensors": many_tensors(2048),
    "arrays": start(0, 1000)
    + b"".join(
        encode_text(str(i)) + struct.pack("<IIQ500I", 9, 4, 500, *range(2**20, 2**20 + 500)) for i in range(1000)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded(name: str) -> None:
    view = memoryview(HOSTILE[name])
    tracemalloc.start()
    try:
        read_or_fault_view(view)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (11 if name == "tensors" else 32) * 1024 * 1024  # 32 for sixteen times as many tensors


def read_or_fault_view(view: memoryview) -> None:
    try:
        read_gguf(lambda offset, length: bytes(view[offset : offset + length]), 2**40)
    except GgufError as error:
        assert error.kind in ("ModelTruncated", "ModelUnsupported")  # noqa: PT017 - success is fine too
