"""Our own coding of messages says and reads the same as Google's library, and survives what is none."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.agent import deviceplugin
from paddock.agent.wire import Message, WireError, at, decode, encode, kinds
from support.protos import classes, tables

PROTO = Path(__file__).parent / "protos" / "deviceplugin_v1beta1.proto"
OURS: dict[str, type[Message]] = {
    name: one
    for name, one in vars(deviceplugin).items()
    if isinstance(one, type) and issubclass(one, Message) and one is not Message
}
THEIRS = classes(PROTO)
TEXT = st.text(max_size=12)


def in_words(cls: type[Message]) -> dict[str, tuple[int, str]]:
    """Describe a message of ours as its .proto does."""
    names: dict[Any, str] = {str: "string", bool: "bool", int: "int64"}
    out = {}
    for one in fields(cls):
        kind = kinds(cls)[one.name]
        plain = "map<string, string>" if kind.mapped else names.get(kind.of) or kind.of.__name__
        out[one.name] = (one.metadata["number"], f"{'repeated ' if kind.repeated else ''}{plain}")
    return out


@pytest.mark.parametrize("name", list(OURS))
def test_messages_are_as_the_kubelet_publishes_them(name: str) -> None:
    assert in_words(OURS[name]).items() <= tables(PROTO)[name].items()


def values(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Give any message of a class."""

    def of(kind: Any) -> st.SearchStrategy[Any]:
        plain = {str: TEXT, bool: st.booleans()}.get(kind.of)
        one = plain if plain is not None else values(kind.of)
        if kind.mapped:
            return st.dictionaries(TEXT, TEXT, max_size=3)
        return st.lists(one, max_size=3).map(tuple) if kind.repeated else one

    return st.builds(cls, **{name: of(kind) for name, kind in kinds(cls).items()})


@given(st.sampled_from(sorted(OURS)).flatmap(lambda name: st.tuples(st.just(name), values(OURS[name]))))
def test_what_one_writes_the_other_reads(drawn: tuple[str, Message]) -> None:
    name, message = drawn
    data = encode(message)
    assert decode(OURS[name], data) == message
    theirs = THEIRS[name].FromString(data)
    assert decode(OURS[name], theirs.SerializeToString()) == message
    assert len(theirs.SerializeToString()) == len(data)


@dataclass(frozen=True, slots=True)
class Numbers(Message):
    """Whole numbers of both signs."""

    one: int = at(1, 0)
    other: int = at(15000, 0)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_whole_numbers_of_both_signs(number: int) -> None:
    assert decode(Numbers, encode(Numbers(number, number))) == Numbers(number, number)


def test_fields_of_newer_versions_are_passed_over() -> None:
    newer = THEIRS["Device"](ID="m0", health="Healthy")
    newer.topology.nodes.add(ID=1)
    known = decode(deviceplugin.Device, newer.SerializeToString() + b"\x29" + bytes(8) + b"\x35" + bytes(4))
    assert known == deviceplugin.Device("m0", "Healthy")


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_give_a_message_or_an_error(data: bytes) -> None:
    for cls in OURS.values():
        try:
            decode(cls, data)
        except WireError:
            continue


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\x80" * 11, b"\x0b", b"\x08\x01", b"\x0a\x01\xff"])
def test_broken_messages_are_errors(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(deviceplugin.Device, data)
