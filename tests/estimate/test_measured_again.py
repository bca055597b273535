"""llama.cpp measured anew: the committed table must be what the libraries of the pinned build say."""

from pathlib import Path

import pytest

from estimate import table
from estimate.measuring import libraries, measure, write_sparse
from support.gguf_writer import write_gguf

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build"),
]


@pytest.mark.parametrize("name", [*table.architectures(), *table.published(), *table.encoding()])
def test_the_table_is_what_llama_cpp_says(name: str, tmp_path: Path) -> None:
    folder, path = libraries(), tmp_path / f"{name}.gguf"
    assert folder is not None
    parts = table.parts(name)
    if parts is not None:
        write_gguf(path, *parts)
    else:
        write_sparse(path, *table.head(name))
    found = {
        key: value if isinstance(value, str) else tuple(value)
        for key, value in measure(folder, path, table.measured(name)).items()
    }
    assert found == {
        key: value if isinstance(value, str) else tuple(value) for key, value in table.measured(name).items()
    }
