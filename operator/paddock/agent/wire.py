"""Protocol Buffers for the few messages that kubelets and their plugins exchange.

A message is a frozen dataclass whose fields say their numbers. Known are text, whole numbers, truth values, messages,
lists of texts and messages, and maps of text to text: all that the kubelet's interfaces for plugins have. That is small
enough to stand here, and spares every node the library and generated code. A test compares the messages with the
published definitions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types; the others are not in use any more."""
_LONGEST_VARINT = 70
"""Bits beyond which a number is none."""
_SIGN = 1 << 63


class WireError(ValueError):
    """Bytes that are no message."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages."""


M = TypeVar("M", bound=Message)


def at(number: int, default: Any = MISSING) -> Any:
    """Declare a field with this number; lists and maps begin empty."""
    if default is MISSING:
        return field(metadata={"number": number})
    if isinstance(default, type):
        return field(default_factory=default, metadata={"number": number})
    return field(default=default, metadata={"number": number})


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a field holds."""

    of: Any
    """str, int, bool or the class of a message."""
    repeated: bool = False
    mapped: bool = False


_KINDS: dict[type[Message], Mapping[str, _Kind]] = {}


def kinds(cls: type[Message]) -> Mapping[str, _Kind]:
    """Give what each field of a message holds, by its name."""
    if cls not in _KINDS:
        _KINDS[cls] = {name: _kind(hint) for name, hint in get_type_hints(cls).items()}
    return _KINDS[cls]


def _kind(hint: Any) -> _Kind:
    if get_origin(hint) is tuple:
        return _Kind(get_args(hint)[0], repeated=True)
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping):
        return _Kind(str, mapped=True)
    several = [one for one in get_args(hint) if one is not type(None)]
    return _Kind(several[0] if several else hint)


def numbers(cls: type[Message]) -> Mapping[int, "Field[Any]"]:
    """Give the fields of a message by number."""
    return {one.metadata["number"]: one for one in fields(cls)}


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Give the bytes of a message."""
    out = bytearray()
    for number, one in numbers(type(message)).items():
        value, kind = getattr(message, one.name), kinds(type(message))[one.name]
        if kind.mapped:
            for pair in value.items():
                _put(out, number, _encode_pair(*pair))
        elif kind.repeated:
            for item in value:
                _put(out, number, item)
        elif value is not None and value not in ("", 0):
            _put(out, number, value)
    return bytes(out)


def _encode_pair(key: str, value: str) -> bytes:
    out = bytearray()
    _put(out, 1, key)
    _put(out, 2, value)
    return bytes(out)


def _put(out: bytearray, number: int, value: Any) -> None:
    if isinstance(value, int):  # also a truth value
        _put_varint(out, number << 3 | _VARINT)
        _put_varint(out, value % (1 << 64))
        return
    data = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else encode(value)
    _put_varint(out, number << 3 | _LENGTH)
    _put_varint(out, len(data))
    out += data


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:  # noqa: PLR2004 seven bits to a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(cls: type[M], data: bytes) -> M:
    """Read a message; fields of newer versions are passed over. Raises WireError."""
    known, sorts = numbers(cls), kinds(cls)
    values: dict[str, Any] = {}
    for number, raw in _parts(data):
        if number not in known:
            continue
        name = known[number].name
        kind = sorts[name]
        if kind.mapped:
            values.setdefault(name, {}).update((_decode_pair(raw),))
        elif kind.repeated:
            values.setdefault(name, []).append(_read(kind.of, raw))
        else:
            values[name] = _read(kind.of, raw)
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _decode_pair(raw: int | bytes) -> tuple[str, str]:
    parts: dict[int, int | bytes] = {1: b"", 2: b""}
    parts.update(_parts(_bytes(raw)))
    return _read(str, parts[1]), _read(str, parts[2])


def _read(of: Any, raw: int | bytes) -> Any:
    if of is str:
        try:
            return _bytes(raw).decode()
        except UnicodeDecodeError as error:
            raise WireError("a text is not UTF-8") from error
    if of in (bool, int):
        if not isinstance(raw, int):
            raise WireError("a number has the form of a text")
        return bool(raw) if of is bool else raw - (1 << 64) if raw & _SIGN else raw
    return decode(of, _bytes(raw))


def _bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise WireError("a text has the form of a number")
    return raw


def _parts(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give the fields as they come: number, and a number or bytes."""
    position = 0
    while position < len(data):
        head, position = _varint(data, position)
        number, wire = head >> 3, head & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value & (1 << 64) - 1
            continue
        if wire == _LENGTH:
            size, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise WireError(f"unknown wire type {wire}")
        if position + size > len(data):
            raise WireError("the message is cut short")
        yield number, data[position : position + size]
        position += size


def _varint(data: Sequence[int], position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 the last one
            return value, position
        shift += 7
        if shift >= _LONGEST_VARINT:
            break
    raise WireError("a number is cut short or too long")
