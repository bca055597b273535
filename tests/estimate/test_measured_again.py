"""llama.cpp measured anew: the committed table must be what the libraries of the pinned build say."""

from pathlib import Path

import pytest

from estimate import table
from estimate.corpus import SHAPES, metadata, tensors
from estimate.measuring import libraries, measure, write_sparse
from support.gguf_writer import write_gguf

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build"),
]


@pytest.mark.parametrize("name", [*table.architectures(), *table.published()])
def test_the_table_is_what_llama_cpp_says(name: str, tmp_path: Path) -> None:
    folder, path = libraries(), tmp_path / f"{name}.gguf"
    assert folder is not None
    if name in SHAPES:
        write_gguf(path, metadata(SHAPES[name]), tensors(SHAPES[name]))
    else:
        write_sparse(path, *table.head(name))
    found = {
        key: value if isinstance(value, str) else tuple(value)
        for key, value in measure(folder, path, table.measured(name)).items()
    }
    assert found == {
        key: value if isinstance(value, str) else tuple(value) for key, value in table.measured(name).items()
    }
