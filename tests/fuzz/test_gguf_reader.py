"""Fuzzing of the GGUF reader: no crash, no hang, no more than 100 MB, whatever the bytes.

Budget in CI: 150 examples of each kind, some ten seconds of one core in all. Long run: PADDOCK_EXAMPLES=20000.
"""

import os
import random
import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.core import gguf
from paddock.core.gguf import GgufError, GgufMetadata, Skipped, read_gguf
from paddock.core.split import read_parts
from paddock.core.summary import summarize
from support import gguf_writer as writer
from support.gguf_writer import Spec, encode_tensor, encode_text, encode_value

EXAMPLES = max(150, int(os.environ.get("PADDOCK_EXAMPLES", "0")))
MOST_BYTES = 100 * 1000 * 1000
MOST_SECONDS = 5.0
"""Processor seconds for one input; the largest hostile ones take one."""
FAULTS = ("NotGguf", "ModelTruncated", "ModelUnsupported")

sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from([2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)
kinds = st.one_of(st.integers(0, 15), st.integers(0, 2**32 - 1))
bytes_ = st.binary(max_size=64)
texts = st.builds(lambda length, data: struct.pack("<Q", length) + data, sizes, bytes_) | st.builds(encode_text, bytes_)
keys = st.builds(encode_text, st.sampled_from(["general.alignment", "general.architecture", "split.count"])) | texts
arrays = st.builds(lambda kind, count, data: struct.pack("<IQ", kind, count) + data, kinds, sizes, bytes_)
values = st.builds(lambda kind, data: struct.pack("<I", kind) + data, kinds, texts | arrays | bytes_)
pairs = st.builds(lambda key, value: key + value, keys, values)
shapes = st.lists(sizes, max_size=6)
tensors = st.builds(
    lambda name, count, shape, kind, offset: (
        name
        + struct.pack("<I", count if count < 2**32 else len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    ),
    texts,
    st.integers(0, 6) | sizes,
    shapes,
    kinds,
    sizes,
)
files = st.builds(
    lambda version, counts, metadata, table, tail: (
        b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(metadata) + b"".join(table) + tail
    ),
    st.sampled_from([2, 3, 3, 3, 1, 0x03000000]),
    st.tuples(st.integers(0, 6) | sizes, st.integers(0, 6) | sizes),
    st.lists(pairs, max_size=6),
    st.lists(tensors, max_size=6),
    bytes_,
)


def read(data: bytes, size: int | None = None) -> GgufMetadata | None:
    """Read bytes as a file of that size; None for a fault, which must have an offset within the file."""
    whole = len(data) if size is None else size
    began = time.process_time()
    try:
        found = read_gguf(lambda offset, length: data[offset : offset + length], whole)
        summarize(read_parts("m-00001-of-00002.gguf", lambda _: found))
    except GgufError as error:
        assert error.kind in FAULTS  # noqa: PT017 - a good file is fine too
        assert error.offset is None or 0 <= error.offset <= whole  # noqa: PT017
        return None
    finally:
        assert time.process_time() - began < MOST_SECONDS
    return found


@pytest.fixture(autouse=True, scope="module")
def _memory_is_bounded() -> Iterator[None]:
    """Trace everything that this module's tests take."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_BYTES


@settings(max_examples=EXAMPLES)
@given(files, sizes)
def test_files_of_hostile_parts(data: bytes, size: int) -> None:
    read(data)
    read(data, size)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=2000))
def test_noise_behind_the_magic(data: bytes) -> None:
    read(data)
    read(b"GGUF\x03\0\0\0" + data)


MODEL = writer.Model(
    extra={"tokenizer.ggml.tokens": [f"t{index}" for index in range(100)], "llama.rope.freqs": [1.0] * 40}
)
HEAD = writer.header(MODEL.metadata(), MODEL.tensors())
WHOLE = len(HEAD) + writer.data_bytes(MODEL.tensors())
edits = st.lists(
    st.tuples(
        st.integers(0, len(HEAD)),
        st.sampled_from(["set", "cut", "insert", "number"]),
        st.binary(min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=EXAMPLES)
@given(edits, sizes)
def test_a_good_file_with_some_edits(changes: list[tuple[int, str, bytes]], number: int) -> None:
    data = bytearray(HEAD)
    for position, kind, piece in changes:
        if kind == "set":
            data[position : position + len(piece)] = piece
        elif kind == "cut":
            del data[position : position + len(piece)]
        elif kind == "insert":
            data[position:position] = piece
        else:
            data[position : position + 8] = struct.pack("<Q", number)
    read(bytes(data), WHOLE)


def naive(data: bytes, position: int, count: int) -> int:
    for _ in range(count):
        position += 8 + int.from_bytes(data[position : position + 8], "little")
    return position


@settings(max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(1, 4000), st.sampled_from([40, 41, 60, 300]), st.sampled_from([64, 1000, 2**20])
)
def test_strings_are_skipped_as_a_plain_loop_does(seed: int, count: int, longest: int, window: int) -> None:
    """Runs of short strings are matched at once; with long ones between, at any border of the window."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible vocabulary
    lengths = [chance.choice((chance.randrange(12), chance.randrange(longest + 1))) for _ in range(count)]
    strings = b"".join(struct.pack("<Q", length) + bytes(length) for length in lengths)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + encode_text("k") + struct.pack("<IIQ", 9, 8, count) + strings
    end = len(data)
    data += encode_text("after") + encode_value(77)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_READ", "_SECOND_READ", "_NEXT_READ"):
            patch.setattr(gguf, name, window)
        found = read_gguf(lambda offset, length: data[offset : offset + length], len(data))
    assert found.values == {"k": Skipped(8, count), "after": 77}
    assert naive(data, end - len(strings), count) == end


def test_a_length_of_five_bytes_is_no_short_string() -> None:
    """Only the lowest byte looks short; the whole number says that the file ends there."""
    for hidden in (0x0105, 0x010005, 0x05_0000_0005, 0x0500_0000_0000_0005):
        strings = struct.pack("<Q", hidden) + bytes(5) + encode_text("x") * 2000
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + encode_text("k") + struct.pack("<IIQ", 9, 8, 1500) + strings
        found = read(data)
        assert found is None or found.data_offset > hidden


def test_an_array_of_the_worst_strings_is_no_hang() -> None:
    """Long strings between short ones spoil every run."""
    strings = (encode_text("x" * 5) * 31 + encode_text("y" * 41)) * 6000
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + encode_text("k") + struct.pack("<IIQ", 9, 8, 192_000) + strings
    assert read_gguf(lambda offset, length: data[offset : offset + length], len(data)).values["k"] == Skipped(
        8, 192_000
    )


def test_tensors_of_hostile_shapes() -> None:
    for shape in ((2**63 - 1,), (2**32, 2**31), (0,), (0, 2**62), (32, 0, 0, 5), ()):
        row = encode_tensor(Spec("t", shape), 0)
        read(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + row + bytes(64), 2**62)
