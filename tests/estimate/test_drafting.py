"""Servers that draft, against llama.cpp: more rows of scores, and states that can be taken back."""

from pathlib import Path

import pytest

from estimate import table
from estimate.corpus import SHAPES, metadata, tensors
from estimate.measuring import libraries, write_sparse
from paddock.agent.measure import Meter, Subject
from paddock.core.estimate import Options, estimate
from paddock.core.measured import COUNTED, PLACES
from support.gguf_writer import write_gguf

FOLDER = libraries()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
DRAFTING = Options(context=4096, parallel=4, drafted=3)
HEAD = Options(context=4096, parallel=2, kv_unified=True, drafted=3, mtp=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama-3.2-1b", DRAFTING),
        ("gpt-oss-20b", DRAFTING),
        ("lfm2-dense", DRAFTING),
        ("lfm2-dense", HEAD),
        ("nemotron_h-dense", HEAD),
        ("qwen35-dense", HEAD),
        ("qwen3next-moe", HEAD),
    ],
)
def test_drafting_takes_what_llama_cpp_counts(name: str, options: Options, tmp_path: Path) -> None:
    assert FOLDER is not None
    path = tmp_path / "m.gguf"
    if name in SHAPES:
        write_gguf(path, metadata(SHAPES[name]), tensors(SHAPES[name]))
    else:
        write_sparse(path, *table.head(name))
    measured = Meter(FOLDER).measure(Subject(path, name), options)
    found = estimate(table.summary(name), options)
    for place in PLACES:
        for kind in COUNTED:
            value, truth = found.sum(place, kind), measured.of(place, kind)
            if kind != "compute":
                assert value == truth, (place, kind)
            else:
                assert value >= truth * 0.99, (place, value / truth)
                assert found.confidence == "bound" or value <= truth * 1.01, (place, value / truth)
