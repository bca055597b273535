"""Messages of the kubelet's gRPC interfaces, read and written by the numbers of their fields.

The few messages that tests need have text, numbers and further messages only: no generated code is needed for that.
"""

from __future__ import annotations

from collections import defaultdict

Value = str | bytes | int | bool


def _varint(number: int) -> bytes:
    out = bytearray()
    while True:
        out.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def encode(*fields: tuple[int, Value]) -> bytes:
    """Write a message; what is repeated is given several times."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(int(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def decode(data: bytes) -> dict[int, list[bytes]]:
    """Read a message: what each field has, in order; numbers are left as the bytes that they were sent in."""
    found: dict[int, list[bytes]] = defaultdict(list)
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        field, kind = divmod(number(), 8)
        start = at
        if kind == 2:
            size = number()
            start, at = at, at + size
        elif kind == 0:
            number()
        else:
            raise ValueError(f"field {field} is of kind {kind}")
        found[field].append(data[start:at])
    return found


def text(message: dict[int, list[bytes]], field: int) -> str:
    """Give a text of a message; empty where it has none."""
    return message[field][-1].decode() if message.get(field) else ""
