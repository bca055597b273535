"""An estimate is worked out once for a model and its options, and is not remembered for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.api.modeldeployment import ServingSpec
from paddock.controller.needs import MOST_KEPT, kept, need
from paddock.core import need as core
from paddock.core.need import MemoryNeed
from support.pretend_agent import summary

if TYPE_CHECKING:
    from paddock.api.report import HeaderSummary

asked: list[tuple[object, bool]] = []


def estimate(_: HeaderSummary, serving: ServingSpec, *, gpu: bool) -> MemoryNeed:
    asked.append((serving.context_length, gpu))
    return MemoryNeed(device_kv=len(asked))


def test_the_same_question_is_answered_from_memory_and_another_is_not() -> None:
    asked.clear()
    ask, model = kept(estimate), summary()
    first = ask(model, ServingSpec(), gpu=True)
    assert ask(model.model_copy(), ServingSpec(), gpu=True) == first
    assert len(asked) == 1
    for other in (
        ask(model, ServingSpec(), gpu=False),
        ask(model, ServingSpec(context_length=512), gpu=True),
        ask(model.model_copy(update={"file_bytes": 1}), ServingSpec(), gpu=True),
    ):
        assert other != first
    assert len(asked) == 4


def test_only_the_last_answers_are_remembered() -> None:
    asked.clear()
    ask, model = kept(estimate), summary()
    for context in range(1, MOST_KEPT + 2):
        ask(model, ServingSpec(context_length=context), gpu=True)
        ask(model, ServingSpec(context_length=2), gpu=True)
    assert len(asked) == MOST_KEPT + 1
    ask(model, ServingSpec(context_length=1), gpu=True)
    assert len(asked) == MOST_KEPT + 2


def test_the_memory_changes_no_answer() -> None:
    model, serving = summary(), ServingSpec(context_length=4096)
    for gpu in (True, False, True):
        assert need(model, serving, gpu=gpu, checkpoints=8) == core.need(model, serving, gpu=gpu, checkpoints=8)
