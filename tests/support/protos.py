"""Message classes of Google's own library from the text of a .proto file, to compare ours with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from pathlib import Path

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(repeated\s+)?(map\s*<\s*string\s*,\s*string\s*>|[\w.]+)\s+(\w+)\s*=\s*(\d+)\s*(?:\[[^\]]*\])?;")
_TYPES = {"string": 9, "bool": 8, "int32": 5, "int64": 3, "uint64": 4}
_MESSAGE_TYPE = 11


def tables(file: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Give each message's fields: number, and type with `repeated` in front of lists."""
    text = _COMMENT.sub("", file.read_text())
    out: dict[str, dict[str, tuple[int, str]]] = {}
    for name, body in _MESSAGE.findall(text):
        found = _FIELD.findall(body)
        out[name] = {
            field: (int(number), f"{repeated and 'repeated '}{type_}") for repeated, type_, field, number in found
        }
    return out


def classes(file: Path) -> dict[str, Any]:
    """Give the classes by name. Only messages that are not nested in others are known, and maps of texts."""
    package = re.search(r"^package ([\w.]+);", file.read_text(), re.MULTILINE)
    assert package is not None
    described = descriptor_pb2.FileDescriptorProto(name=file.name, package=package[1], syntax="proto3")
    for name, of in tables(file).items():
        message = described.message_type.add(name=name)
        for field, (number, type_) in of.items():
            _describe(message, package[1], field, number, type_)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    full = {name: pool.FindMessageTypeByName(f"{package[1]}.{name}") for name in tables(file)}
    return {name: message_factory.GetMessageClass(found) for name, found in full.items()}


def _describe(message: Any, package: str, field: str, number: int, type_: str) -> None:
    plain = type_.removeprefix("repeated ")
    made = message.field.add(name=field, number=number, label=3 if type_ != plain or plain.startswith("map") else 1)
    if plain.startswith("map"):
        entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=9)
        entry.field.add(name="value", number=2, label=1, type=9)
        made.type, made.type_name = _MESSAGE_TYPE, f".{package}.{message.name}.{entry.name}"
    elif plain in _TYPES:
        made.type = _TYPES[plain]
    else:
        made.type, made.type_name = _MESSAGE_TYPE, f".{package}.{plain}"
