"""Windows that the file says otherwise, or not at all, against llama.cpp: what it takes instead is built into it."""

import struct
from pathlib import Path

import pytest

from estimate.errors import PLACES
from estimate.measuring import asked, libraries, write_sparse
from estimate.options import DEFAULTS, options_of
from estimate.test_fresh_architectures import models
from estimate.test_tensor_split import agree
from paddock.core.architectures import ALWAYS_WINDOWED, WINDOWS, WINDOWS_IN_FILE
from paddock.core.estimate import estimate
from paddock.core.gguf import read_gguf
from paddock.core.summary import summarize

FOLDER = libraries()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
KEY = "attention.sliding_window"
SETS = [
    {**DEFAULTS, "context": 20_000},
    {**DEFAULTS, "context": 20_000, "parallel": 2, "unified": True, "flashAttention": "off"},
]
OFTEN = ("8/gemma2-dense", "8/llama4-moe", "8/smallthinker-moe", "8/cohere2-dense", "8/olmo2-dense", "11/exaone4-dense")


def _names() -> list[object]:
    windowed = ALWAYS_WINDOWED | WINDOWS.keys() | WINDOWS_IN_FILE | {"lfm2"}
    every = [name for name in models() if name[:2] == "8/" and name[2:].rpartition("-")[0] in windowed]
    return [*OFTEN, *(pytest.param(name, marks=pytest.mark.long) for name in sorted({*every} - {*OFTEN}))]


def with_window(head: bytes, tokens: int | None) -> bytes:
    """Change the window that a header says, or rename its key to one that nobody reads."""
    end = head.index(KEY.encode() + struct.pack("<I", 4)) + len(KEY)
    if tokens is None:
        return head[: end - 1] + b"_" + head[end:]
    return head[: end + 4] + struct.pack("<I", tokens) + head[end + 8 :]


@pytest.mark.parametrize("tokens", [None, 0, 700])
@pytest.mark.parametrize("name", _names())
def test_a_window_is_the_one_that_llama_cpp_takes(name: str, tokens: int | None, tmp_path: Path) -> None:
    head, size = models()[name]
    head = with_window(head, tokens)
    path = write_sparse(tmp_path / "m.gguf", head, size)
    summary = summarize([read_gguf(lambda offset, length: head[offset : offset + length], size)])
    assert FOLDER is not None
    answers = asked(FOLDER, path, SETS)
    assert not tokens or any("error" not in one for one in answers)
    for told, truth in zip(SETS, answers, strict=False):
        if "error" in truth:  # most without the key, some with a window of none
            assert not tokens
            continue
        found = estimate(summary, options_of(told))
        for place in PLACES:
            for kind, known in zip(("weights", "kvCache", "compute"), truth[place], strict=True):
                parts = [one for one in found.addends if (one.place, one.kind) == (place, kind)]
                agree(parts, known, f"{told} {place}")
