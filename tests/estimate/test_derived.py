"""The templates that ship are what the tool derives from llama.cpp's graphs of a few architectures."""

import tarfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from estimate.derive.__main__ import derived
from estimate.derive.derive import Recording
from estimate.derive.merge import texts
from estimate.derive.recording import build, record
from estimate.measuring import libraries, write_sparse
from paddock.core.templates import OPERATIONS, templates

MODELS: Final = Path(__file__).parent / "derived.tar.xz"
"""Headers of the small models that variants.py and published.py make, by folder and name; each ends with its size."""
pytestmark = pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build")


@cache
def models() -> dict[str, tuple[bytes, int]]:
    found = {}
    with tarfile.open(MODELS) as archive:
        for one in archive:
            file = archive.extractfile(one)
            assert file is not None
            data = file.read()
            found[one.name] = data[:-8], int.from_bytes(data[-8:], "little")
    return found


def recordings(architecture: str, folder: Path) -> list[Recording]:
    where = libraries()
    assert where is not None
    recorder = build(folder, where.parent / "include")
    found = []
    for name, (head, size) in models().items():
        group, _, model = name.partition("/")
        if model.rpartition("-")[0] == architecture:
            path = write_sparse(folder / f"{model}.gguf", head, size)
            found += record(where, recorder, path, int(group[0]))
    return found


@pytest.mark.parametrize("architecture", ["arcee", pytest.param("smallthinker", marks=pytest.mark.long)])
def test_the_tool_derives_what_ships(architecture: str, tmp_path: Path) -> None:
    found, trouble = derived({architecture: recordings(architecture, tmp_path)}, OPERATIONS)
    assert trouble == []
    assert found.names[architecture] == templates(OPERATIONS).names[architecture]
    shipped = templates(OPERATIONS)
    assert found.graphs[architecture].keys() == shipped.graphs[architecture].keys()
    for graph in found.graphs[architecture]:
        assert texts(found, architecture, graph) == texts(shipped, architecture, graph)
