"""The GGUF reader on valid, wrong and hostile bytes."""

import struct
from collections.abc import Callable

import pytest

from paddock.core import gguf
from paddock.core.ggml import ELEMENTS, type_called
from paddock.core.gguf import GgufError, GgufMetadata, Skipped, read_gguf
from support import gguf_writer as writer
from support.gguf_writer import Spec, Typed, encode_tensor, encode_text, encode_value

MODEL = writer.Model()
HEAD = writer.header(MODEL.metadata(), MODEL.tensors())
WHOLE = len(HEAD) + writer.data_bytes(MODEL.tensors())


def source(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


def parse(data: bytes, size: int | None = None) -> GgufMetadata:
    return read_gguf(source(data), len(data) if size is None else size)


def start(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def one_key(value: bytes, key: str = "k") -> bytes:
    return start(0, 1) + encode_text(key) + value


def one_tensor(name: str = "t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return start(1, 0) + encode_tensor(Spec(name, shape, kind), offset) + bytes(4096)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_a_model(version: int) -> None:
    head = writer.header(MODEL.metadata(), MODEL.tensors(), version)
    found = parse(head, WHOLE)
    assert found.version == version
    assert found.values["general.architecture"] == "llama"
    assert found.values["llama.block_count"] == 2
    assert [tensor.name for tensor in found.tensors] == [spec.name for spec in MODEL.tensors()]
    assert [tensor.bytes for tensor in found.tensors] == [spec.bytes for spec in MODEL.tensors()]
    assert (found.data_offset, found.alignment, found.file_bytes) == (len(head), 32, WHOLE)


def test_every_scalar_type_is_decoded() -> None:
    codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    metadata = {f"k{kind}": Typed(kind, struct.pack("<" + code, 1)) for kind, code in codes.items()}
    found = parse(writer.header(metadata))
    assert dict(found.values) == dict.fromkeys(metadata, 1)
    assert found.values["k7"] is True


def test_small_arrays_are_kept_and_large_ones_measured() -> None:
    metadata: dict[str, writer.Value] = {
        "heads": [8, 8, 0, 4],
        "windowed": [True, False, True],
        "scores": [0.5] * (gguf.MAX_ARRAY + 1),
        "tokens": ["a", "", "ccc"],
        "template": "x" * (gguf.MAX_TEXT + 1),
        "after": 7,
    }
    assert dict(parse(writer.header(metadata)).values) == {
        "heads": (8, 8, 0, 4),
        "windowed": (True, False, True),
        "scores": Skipped(6, gguf.MAX_ARRAY + 1),
        "tokens": Skipped(8, 3),
        "template": Skipped(8, gguf.MAX_TEXT + 1),
        "after": 7,
    }


def test_kept_arrays_are_limited_in_all() -> None:
    fitting = gguf.MAX_ARRAY_TOTAL // gguf.MAX_ARRAY
    metadata = {f"k{index:03}": [1] * gguf.MAX_ARRAY for index in range(fitting + 1)}
    values = list(parse(writer.header(metadata)).values.values())
    assert [isinstance(value, tuple) for value in values] == [True] * fitting + [False]


def test_names_that_are_not_text_are_replaced() -> None:
    found = parse(start(0, 1) + encode_text(b"\xff\xfek") + encode_value(1))
    assert list(found.values) == ["\ufffd\ufffdk"]


def test_alignment_of_the_file_is_used() -> None:
    tensors = [Spec("a", (3,)), Spec("b", (5,))]
    head = start(2, 1) + encode_text("general.alignment") + encode_value(128)
    head += encode_tensor(tensors[0], 0) + encode_tensor(tensors[1], 128)
    found = parse(head + bytes(4096))
    assert found.data_offset % 128 == 0
    assert found.tensors[1].offset == 128


def test_extent_is_checked_to_the_byte() -> None:
    tensors = [Spec("a", (3,)), Spec("b", (5,))]
    head = writer.header({"k": 1}, tensors)
    exact = len(head) + 32 + 20
    assert parse(head, exact).file_bytes == exact
    with pytest.raises(GgufError) as raised:
        parse(head, exact - 1)
    assert raised.value.kind == "ModelTruncated"
    assert f"has {exact - 1} bytes but its header describes {exact}" in raised.value.message
    assert "'b'" in raised.value.message


MALFORMED: list[tuple[str, bytes, str, str]] = [
    ("empty", b"", "NotGguf", "0 bytes, too few"),
    ("three bytes", b"GGU", "NotGguf", "3 bytes, too few"),
    ("zip", b"PK\x03\x04" + bytes(100), "NotGguf", "begins with b'PK"),
    ("old ggml", b"lmgg" + bytes(100), "NotGguf", "begins with b'lmgg'"),
    ("only magic", b"GGUF", "ModelTruncated", "in the version"),
    ("version 0", start(0, 0, 0), "ModelUnsupported", "version 0"),
    ("version 1", start(0, 0, 1), "ModelUnsupported", "version 1"),
    ("version 4", start(0, 0, 4), "ModelUnsupported", "version 4"),
    ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "ModelUnsupported", "big-endian"),
    ("ends in counts", start(0, 0)[:20], "ModelTruncated", "number of metadata keys"),
    ("tensor count", start(2**63, 0), "ModelUnsupported", "tensors, at most"),
    ("key count", start(0, 2**64 - 1), "ModelUnsupported", "metadata keys, at most"),
    ("no keys", start(0, 3), "ModelTruncated", "metadata key 0"),
    ("key length", start(0, 1) + struct.pack("<Q", 2**63), "ModelUnsupported", "bytes long, at most 1024"),
    ("ends in a key", start(0, 1) + encode_text("abc")[:-1], "ModelTruncated", "metadata key 0"),
    ("no type", one_key(b""), "ModelTruncated", "the type of 'k'"),
    ("unknown type", one_key(struct.pack("<IQ", 13, 0)), "ModelUnsupported", "unknown type 13"),
    ("no value", one_key(struct.pack("<I", 4)), "ModelTruncated", "the value of 'k'"),
    ("ends in a string", one_key(struct.pack("<IQ", 8, 50) + b"x" * 49), "ModelTruncated", "the value of 'k'"),
    ("string length", one_key(struct.pack("<IQ", 8, 2**64 - 1)), "ModelUnsupported", "larger than 67108864"),
    ("array of arrays", one_key(struct.pack("<IIQ", 9, 9, 1)), "ModelUnsupported", "unsupported type 9"),
    ("array of unknown", one_key(struct.pack("<IIQ", 9, 99, 1)), "ModelUnsupported", "unsupported type 99"),
    ("array count", one_key(struct.pack("<IIQ", 9, 4, 2**62)), "ModelUnsupported", "larger than"),
    ("array ends", one_key(struct.pack("<IIQ", 9, 4, 9000) + bytes(9000)), "ModelTruncated", "array 'k'"),
    ("string array count", one_key(struct.pack("<IIQ", 9, 8, 2**61)), "ModelUnsupported", "larger than"),
    ("string array ends", one_key(encode_value(["a", "b"])[:-1]), "ModelTruncated", "array 'k'"),
    (
        "string in array",
        one_key(struct.pack("<IIQQ", 9, 8, 2, 2**63) + bytes(99)),
        "ModelUnsupported",
        "larger than",
    ),
    (
        "string in array past the end",
        one_key(struct.pack("<IIQQ", 9, 8, 2, 1000) + bytes(99)),
        "ModelTruncated",
        "array 'k'",
    ),
    (
        "same key twice",
        start(0, 2) + 2 * (encode_text("k") + encode_value(1)),
        "ModelUnsupported",
        "'k' is there twice",
    ),
    ("alignment 0", one_key(encode_value(0), "general.alignment"), "ModelUnsupported", "not a power of two"),
    ("alignment 48", one_key(encode_value(48), "general.alignment"), "ModelUnsupported", "not a power of two"),
    ("alignment text", one_key(encode_value("32"), "general.alignment"), "ModelUnsupported", "not a power of two"),
    ("alignment huge", one_key(encode_value(2**31), "general.alignment"), "ModelUnsupported", "not a power of two"),
    ("no tensors", start(1, 0), "ModelTruncated", "the name of tensor 0"),
    ("tensor name length", one_tensor("n" * 64), "ModelUnsupported", "64 bytes long, at most 63"),
    ("five dimensions", one_tensor(shape=(1, 1, 1, 1, 1)), "ModelUnsupported", "5 dimensions"),
    ("negative dimension", one_tensor(shape=(2**63,)), "ModelUnsupported", "too many elements"),
    ("hidden negative dimension", one_tensor(shape=(0, 2**63)), "ModelUnsupported", "too many elements"),
    ("elements overflow", one_tensor(shape=(2**32, 2**32)), "ModelUnsupported", "too many elements"),
    ("bytes overflow", one_tensor(shape=(2**62,)), "ModelUnsupported", "more than 2^63 bytes"),
    ("removed type", one_tensor(kind=4), "ModelUnsupported", "unknown ggml type 4"),
    ("unknown tensor type", one_tensor(kind=2**32 - 1), "ModelUnsupported", "unknown ggml type"),
    ("row of half a block", one_tensor(shape=(48,), kind=8), "ModelUnsupported", "not a multiple of q8_0's block 32"),
    ("first offset", one_tensor(offset=32), "ModelUnsupported", "offset 32 instead of 0"),
    (
        "same tensor twice",
        start(2, 0) + encode_tensor(Spec("t", (8,)), 0) + encode_tensor(Spec("t", (8,)), 32) + bytes(100),
        "ModelUnsupported",
        "'t' is there twice",
    ),
    (
        "overlapping tensors",
        start(2, 0) + encode_tensor(Spec("a", (8,)), 0) + encode_tensor(Spec("b", (8,)), 0) + bytes(100),
        "ModelUnsupported",
        "offset 0 instead of 32",
    ),
    (
        "sum overflow",
        start(2, 0) + encode_tensor(Spec("a", (2**60,)), 0) + encode_tensor(Spec("b", (2**60,)), 2**62) + bytes(100),
        "ModelUnsupported",
        "more than 2^63 bytes",
    ),
    ("data missing", one_tensor(shape=(8192,)), "ModelTruncated", "its header describes 32832"),
]


def test_the_corpus_of_malformed_files_does_not_shrink() -> None:
    assert len({case[1] for case in MALFORMED}) >= 40


@pytest.mark.parametrize(("data", "kind", "message"), [case[1:] for case in MALFORMED], ids=[c[0] for c in MALFORMED])
def test_malformed_input_has_its_error(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(GgufError) as raised:
        parse(data)
    assert (raised.value.kind, message in raised.value.message) == (kind, True), raised.value.message
    assert raised.value.offset is not None
    assert 0 <= raised.value.offset <= len(data)
    assert str(raised.value).endswith(f"(at byte {raised.value.offset})")


def test_every_truncation_is_an_error() -> None:
    for size in range(0, len(HEAD), 7):
        with pytest.raises(GgufError) as raised:
            parse(HEAD[:size])
        assert raised.value.kind == ("NotGguf" if size < 4 else "ModelTruncated")


def test_a_large_vocabulary_is_skipped_in_few_reads() -> None:
    tokens = b"".join(encode_text(f"token{index}") for index in range(512)) * 512
    data = one_key(struct.pack("<IIQ", 9, 8, 262_144) + tokens)
    reads: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    assert read_gguf(read, len(data)).values["k"] == Skipped(8, 262_144)
    assert len(reads) <= 3


def test_an_error_of_the_source_passes_through() -> None:
    def read(offset: int, length: int) -> bytes:
        raise OSError(5, f"cannot read {length} at {offset}")

    with pytest.raises(OSError, match="cannot read"):
        read_gguf(read, 100)


def test_a_source_that_gives_too_much_does_no_harm() -> None:
    found = read_gguf(lambda offset, _: (HEAD + bytes(WHOLE))[offset:], WHOLE)
    assert found == parse(HEAD, WHOLE)


def test_element_types_have_plausible_sizes() -> None:
    for element in ELEMENTS.values():
        assert 0.125 <= element.bytes / element.block <= 8, element
        assert type_called(element.name) is element
    assert type_called("q4_K").row(4096) == 2304
    assert type_called("q8_0").row(33) == 68
