"""Reads the header and the tensor table of a GGUF file, never the weights.

The file is not trusted. Every length and count is checked before it is used, so that no input can make the reader
allocate more than about 30 MB or run longer than a second or two; whatever is wrong comes out as `GgufError`. What
llama.cpp (build 11434, ggml/src/gguf.cpp) refuses is refused here too, so that a pod is not started in vain.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NoReturn

from paddock.core.ggml import type_numbered

Source = Callable[[int, int], bytes]
"""`read(offset, length)`: at most length bytes from offset; fewer only where the file ends."""

FaultKind = Literal["NotGguf", "ModelTruncated", "ModelUnsupported"]
"""The reasons of the vocabulary that a header can be refused for."""

MAGIC: Final = b"GGUF"
"""The first bytes of every GGUF file."""
MAX_HEADER: Final = 64 * 1024 * 1024
"""Bytes up to the end of the tensor table. The largest known vocabularies take less than 20 MiB."""
MAX_KEYS: Final = 4096
"""Metadata keys; published files have fewer than 100."""
MAX_KEY_LENGTH: Final = 1024
"""Bytes of a key; the format allows 65535, published files need 60."""
MAX_TENSORS: Final = 32_768
"""Tensors of one file; DeepSeek-V3 has 1,100 and the largest known file 18,000."""
MAX_TENSOR_NAME: Final = 63
"""Bytes of a tensor's name (GGML_MAX_NAME - 1)."""
MAX_DIMENSIONS: Final = 4
"""Dimensions of a tensor (GGML_MAX_DIMS)."""
MAX_ALIGNMENT: Final = 1024 * 1024
"""Bytes; 32 is the default and the usual value."""
MAX_TEXT: Final = 1024
"""Bytes of a string value that is kept; of a longer one only its length."""
MAX_ARRAY: Final = 4096
"""Elements of a numeric array that is kept; of a longer one only its length."""
MAX_ARRAY_TOTAL: Final = 65_536
"""Elements of all arrays that are kept."""

FIRST_READ: Final = 1024 * 1024
"""Bytes that are asked of the source first: the whole header of a file without a large vocabulary."""
_SECOND_READ: Final = 8 * 1024 * 1024
_NEXT_READ: Final = 12 * 1024 * 1024
"""Together with the two before it this covers every published header in three reads, and two of them fit in memory."""
_LIKELY_LENGTHS: Final = (*range(5, 13), 4, 3, 2, 1, *range(13, 41), 0)
_SHORT_STRINGS: Final = b"|".join(re.escape(bytes([length])) + rb"\0{7}.{%d}" % length for length in _LIKELY_LENGTHS)
_RUNS: Final = tuple((run, re.compile(rb"(?s:%s){%d}+" % (_SHORT_STRINGS, run)).match) for run in (1024, 32))
"""Match so many strings of up to 40 bytes with their lengths, twice as fast as a loop; longer ones take the loop."""
_DEFAULT_ALIGNMENT: Final = 32
_INT64_MAX: Final = 2**63 - 1
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U64: Final = struct.Struct("<Q")


class GgufError(Exception):
    """The file cannot be used: `kind` is a reason of the vocabulary, `offset` the byte where it went wrong.

    offset is None where the header is well-formed but describes what cannot be served.
    """

    def __init__(self, kind: FaultKind, message: str, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.kind: FaultKind = kind
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Skipped:
    """A value that was passed over: a long string, or an array of strings or of many numbers."""

    type: int
    """GGUF type of the string (8) or of the array's elements."""
    length: int
    """Bytes of the string, elements of the array."""


Number = int | float | bool
Value = Number | str | tuple[Number, ...] | Skipped


class Tensor(NamedTuple):
    """One row of the tensor table."""

    name: str
    """Its name, for example blk.0.attn_q.weight."""
    shape: tuple[int, ...]
    """Elements per dimension, the contiguous one first."""
    type: int
    """ggml type number."""
    offset: int
    """Bytes from the start of the data section."""
    bytes: int
    """Bytes of the data."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """What a GGUF file says of itself."""

    version: int
    """Version of the format: 2 or 3."""
    values: Mapping[str, Value]
    """Metadata by key."""
    tensors: tuple[Tensor, ...]
    """Tensor table in file order."""
    alignment: int
    """Bytes that tensors are aligned to in the file."""
    data_offset: int
    """Byte at which the data section starts."""
    file_bytes: int
    """Size of the file."""


class _Cursor:
    """A position in the file and a window of it that is already read."""

    def __init__(self, read: Source, size: int) -> None:
        self._read = read
        self.size = size
        self._window = b""
        self._base = 0
        self._reads = 0
        self.position = 0

    def fail(self, message: str, *, kind: FaultKind = "ModelUnsupported", at: int | None = None) -> NoReturn:
        """Raise a GgufError for this position."""
        raise GgufError(kind, message, self.position if at is None else at)

    def require(self, count: int, what: str) -> None:
        """Fail unless `count` more bytes exist and belong to a header of allowed size."""
        end = self.position + count
        if end > MAX_HEADER:
            self.fail(f"the header is larger than {MAX_HEADER} bytes: {what} would end at byte {end}")
        if end > self.size:
            self._ends(what)

    def _ends(self, what: str) -> NoReturn:
        self.fail(f"the file ends inside its header, in {what}: it has only {self.size} bytes", kind="ModelTruncated")

    def _fill(self, count: int, what: str) -> None:
        """Have `count` bytes at the position in the window."""
        self.require(count, what)
        start = self.position - self._base
        kept = self._window[start:] if start < len(self._window) else b""
        self._window = b""
        offset = self.position + len(kept)
        usual = (FIRST_READ, _SECOND_READ, _NEXT_READ)[min(self._reads, 2)]
        wanted = min(max(count - len(kept), usual), self.size - offset)
        self._reads += 1
        self._window = kept + self._read(offset, wanted)[:wanted]  # without a copy where nothing was kept
        self._base = self.position
        if len(self._window) < count:
            self._ends(what)

    def take(self, count: int, what: str) -> bytes:
        """Give `count` bytes and move past them."""
        if self.position + count > self._base + len(self._window):
            self._fill(count, what)
        start = self.position - self._base
        self.position += count
        return self._window[start : start + count]

    def skip(self, count: int, what: str) -> None:
        """Move past `count` bytes without reading them."""
        self.require(count, what)
        self.position += count

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit number."""
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit number."""
        return int.from_bytes(self.take(8, what), "little")

    def text(self, limit: int, what: str) -> str:
        """Read a string of at most `limit` bytes; bytes that are not UTF-8 are replaced."""
        length = self.u64(what)
        if length > limit:
            self.fail(f"{what} is {length} bytes long, at most {limit} are allowed", at=self.position - 8)
        return self.take(length, what).decode("utf-8", "replace")

    def skip_strings(self, count: int, what: str) -> None:
        """Move past `count` strings: the hot loop, a vocabulary has up to some hundred thousand of them."""
        while count:
            if self.position + 8 > self._base + len(self._window):
                self._fill(8, what)
            before = count
            for run, match in _RUNS:
                while count >= run and (found := match(self._window, self.position - self._base)):
                    self.position = self._base + found.end()
                    count -= run
            if count == before or count < _RUNS[-1][0]:
                count -= self._skip_some(min(count, _RUNS[-1][0]), what)

    def _skip_some(self, count: int, what: str) -> int:
        """Move past at most `count` strings, as many as begin in the window; gives their number."""
        unpack = _U64.unpack_from
        window, here, done = self._window, self.position - self._base, 0
        try:
            for done in range(count):  # noqa: B007 - also counts what came before an exception
                here += 8 + unpack(window, here)[0]
            done = count
        except (struct.error, OverflowError):  # the window ends here: cheaper than a comparison per string
            pass
        end = self._base + here
        self.position = min(end, self._base + len(window))
        self.skip(end - self.position, what)
        return done


def read_gguf(read: Source, file_bytes: int) -> GgufMetadata:
    """Read the header of a file of `file_bytes` bytes; raises GgufError, and what `read` itself raises."""
    cursor = _Cursor(read, file_bytes)
    version = _read_magic(cursor)
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.u64("the number of metadata keys")
    if tensor_count > MAX_TENSORS:
        cursor.fail(f"{tensor_count} tensors, at most {MAX_TENSORS} are supported", at=8)
    if key_count > MAX_KEYS:
        cursor.fail(f"{key_count} metadata keys, at most {MAX_KEYS} are supported", at=16)
    values = _read_values(cursor, key_count)
    alignment = _alignment(cursor, values)
    tensors = _read_tensors(cursor, tensor_count, alignment)
    data = -(-cursor.position // alignment) * alignment
    for tensor in tensors:
        end = data + tensor.offset + tensor.bytes
        if end > file_bytes:
            needed = data + tensors[-1].offset + tensors[-1].bytes
            message = f"the file has {file_bytes} bytes but its header describes {needed}: tensor {tensor.name!r}"
            cursor.fail(f"{message} ends at byte {end}", kind="ModelTruncated", at=file_bytes)
    return GgufMetadata(version, values, tensors, alignment, data, file_bytes)


def _read_magic(cursor: _Cursor) -> int:
    if cursor.size < len(MAGIC):
        cursor.fail(f"the file has {cursor.size} bytes, too few for a GGUF file", kind="NotGguf")
    magic = cursor.take(len(MAGIC), "the first four bytes")
    if magic != MAGIC:
        cursor.fail(f"the file begins with {magic!r} instead of {MAGIC!r}", kind="NotGguf", at=0)
    version = cursor.u32("the version")
    if version and not version & 0xFFFF:
        cursor.fail("big-endian GGUF files are not supported", at=4)
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported, only 2 and 3", at=4)
    return version


def _read_values(cursor: _Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    room = MAX_ARRAY_TOTAL
    for index in range(count):
        start = cursor.position
        key = cursor.text(MAX_KEY_LENGTH, f"metadata key {index}")
        if key in values:
            cursor.fail(f"metadata key {key!r} is there twice", at=start)
        kind = cursor.u32(f"the type of {key!r}")
        if kind == _ARRAY:
            value = _read_array(cursor, key, room)
            room -= len(value) if not isinstance(value, Skipped) else 0
            values[key] = value
        else:
            values[key] = _read_scalar(cursor, key, kind)
    return values


def _read_scalar(cursor: _Cursor, key: str, kind: int) -> Number | str | Skipped:
    what = f"the value of {key!r}"
    if kind == _STRING:
        length = cursor.u64(what)
        if length <= MAX_TEXT:
            return cursor.take(length, what).decode("utf-8", "replace")
        cursor.skip(length, what)
        return Skipped(_STRING, length)
    if kind not in _SCALARS:
        cursor.fail(f"{key!r} has the unknown type {kind}", at=cursor.position - 4)
    letter = _SCALARS[kind]
    (number,) = struct.unpack("<" + letter, cursor.take(struct.calcsize("<" + letter), what))
    value: Number = number
    return value


def _read_array(cursor: _Cursor, key: str, room: int) -> tuple[Number, ...] | Skipped:
    what = f"the array {key!r}"
    kind = cursor.u32(what)
    count = cursor.u64(what)
    if kind == _STRING:
        cursor.require(count * 8, what)
        cursor.skip_strings(count, what)
        return Skipped(kind, count)
    if kind not in _SCALARS:
        cursor.fail(f"the elements of {key!r} have the unsupported type {kind}", at=cursor.position - 12)
    letter = _SCALARS[kind]
    size = struct.calcsize("<" + letter) * count
    if count > min(MAX_ARRAY, room):
        cursor.skip(size, what)
        return Skipped(kind, count)
    return struct.unpack(f"<{count}{letter}", cursor.take(size, what))


def _alignment(cursor: _Cursor, values: Mapping[str, Value]) -> int:
    alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is int and 0 < alignment <= MAX_ALIGNMENT and not alignment & (alignment - 1):
        return alignment
    return cursor.fail(f"general.alignment is {alignment!r}, not a power of two up to {MAX_ALIGNMENT}")


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    names: set[str] = set()
    expected = 0
    for index in range(count):
        start = cursor.position
        tensor = _read_tensor(cursor, index)
        if tensor.name in names:
            cursor.fail(f"tensor {tensor.name!r} is there twice", at=start)
        if tensor.offset != expected:
            cursor.fail(f"tensor {tensor.name!r} has offset {tensor.offset} instead of {expected}", at=start)
        names.add(tensor.name)
        tensors.append(tensor)
        expected += -(-tensor.bytes // alignment) * alignment
        if expected > _INT64_MAX:
            cursor.fail(f"the tensors up to {tensor.name!r} have more than 2^63 bytes", at=start)
    return tuple(tensors)


def _read_tensor(cursor: _Cursor, index: int) -> Tensor:
    start = cursor.position
    name = cursor.text(MAX_TENSOR_NAME, f"the name of tensor {index}")
    what = f"the description of tensor {name!r}"
    dimensions = cursor.u32(what)
    if dimensions > MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {dimensions} dimensions, at most {MAX_DIMENSIONS} are allowed", at=start)
    shape: tuple[int, ...] = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, what))
    elements = 1
    for size in shape:
        elements *= size
    if elements > _INT64_MAX or any(size > _INT64_MAX for size in shape):
        cursor.fail(f"tensor {name!r} has too many elements: {shape}", at=start)
    number = cursor.u32(what)
    ggml = type_numbered(number)
    if ggml is None:
        cursor.fail(f"tensor {name!r} has the unknown ggml type {number}", at=cursor.position - 4)
    row = shape[0] if shape else 1
    if row % ggml.block:
        cursor.fail(f"tensor {name!r}: a row of {row} is not a multiple of {ggml.name}'s block {ggml.block}", at=start)
    size_bytes = elements // ggml.block * ggml.bytes
    if size_bytes > _INT64_MAX:
        cursor.fail(f"tensor {name!r} has more than 2^63 bytes", at=start)
    return Tensor(name, shape, number, cursor.u64(what), size_bytes)
