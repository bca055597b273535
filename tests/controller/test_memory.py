"""When the operator hands memory back: after lists, after many looks, and after some once it rests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.controller import memory
from paddock.controller.memory import MANY_LOOKS, SOME_LOOKS, Tidy

if TYPE_CHECKING:
    import pytest


def test_memory_is_handed_back_when_that_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(memory, "hand_back_memory", lambda: done.append(looks))
    tidy = Tidy()
    for looks in (0, SOME_LOOKS - 1, SOME_LOOKS - 1):
        tidy.look(looks)
    assert done == [], "a few looks are not worth it"
    for looks in (SOME_LOOKS, SOME_LOOKS + 1, SOME_LOOKS + 1, SOME_LOOKS + 1):
        tidy.look(looks)
    assert done == [SOME_LOOKS + 1], "once, when no more of them come"
    many = SOME_LOOKS + 1 + MANY_LOOKS
    for looks in (many - 1, many):
        tidy.look(looks)
    assert done[1:] == [many]
    tidy.lists_were_read()
    for _ in range(2):
        tidy.look(looks)
    assert done[2:] == [many], "and after everything was read, once"
