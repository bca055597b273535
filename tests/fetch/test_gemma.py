"""The real Gemma 3 270M, whole and in parts, from a hub to llama-server's folder."""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING

import pytest

from cluster.models import cached
from cluster.settings import cache_folder
from paddock.core.gguf import read_gguf
from paddock.fetch.credentials import NONE
from paddock.fetch.header import header
from support.fetch_site import add_repository, sha256
from support.gguf_writer import Spec, Typed, encode_tensor, encode_text, encode_value

from .conftest import parsed

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node

PARTS = 3
U16, I32 = 2, 5


@pytest.fixture(scope="module")
def gemma() -> Path:
    return cached(cache_folder())


def split(whole: Path, folder: Path) -> list[Path]:
    """Write the parts of a model, as llama-gguf-split does: the metadata in the first, the tensors dealt out."""
    with whole.open("rb") as stream:
        found = read_gguf(lambda offset, length: (stream.seek(offset), stream.read(length))[1], whole.stat().st_size)
        stream.seek(0)
        head = stream.read(found.data_offset)
        table = head.index(encode_text(found.tensors[0].name), 24)
        share = -(-len(found.tensors) // PARTS)
        paths = []
        for number in range(PARTS):
            tensors = found.tensors[number * share : (number + 1) * share]
            keys = {
                "split.no": Typed(U16, struct.pack("<H", number)),
                "split.count": Typed(U16, struct.pack("<H", PARTS)),
                "split.tensors.count": Typed(I32, struct.pack("<i", len(found.tensors))),
            }
            own = b"".join(encode_text(key) + encode_value(value) for key, value in keys.items())
            first = number == 0
            count = (len(found.values) if first else 0) + len(keys)
            start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + (head[24:table] if first else b"") + own
            offset = 0
            for one in tensors:
                start += encode_tensor(Spec(one.name, one.shape, one.type), offset)
                offset += -(-one.bytes // found.alignment) * found.alignment
            path = folder / f"gemma-Q8_0-{number + 1:05}-of-{PARTS:05}.gguf"
            with path.open("wb") as output:
                output.write(start.ljust(-(-len(start) // found.alignment) * found.alignment, b"\0"))
                for one in tensors:
                    stream.seek(found.data_offset + one.offset)
                    raw = stream.read(one.bytes)
                    output.write(raw.ljust(-(-len(raw) // found.alignment) * found.alignment, b"\0"))
            paths.append(path)
    return paths


def test_the_whole_model_is_told_and_fetched(node: Node, gemma: Path) -> None:
    add_repository(node.site, "ggml-org/gemma", {"gemma-Q8_0.gguf": gemma})
    answer = header(parsed("hf://ggml-org/gemma:Q8_0"), NONE, node.settings())
    assert answer.summary is not None
    assert answer.summary.architecture == "gemma3"
    assert sum(path.startswith("/cdn/") for path, _ in node.site.asked) <= 3
    node.site.asked.clear()
    done = node.get("hf://ggml-org/gemma:Q8_0")
    assert done.files[0].digest == "sha256:" + sha256(gemma)


def test_the_model_in_parts_says_the_same_and_all_parts_are_fetched(node: Node, gemma: Path, tmp_path: Path) -> None:
    paths = split(gemma, tmp_path)
    add_repository(node.site, "ggml-org/gemma", {path.name: path for path in paths})
    add_repository(node.site, "ggml-org/whole", {"gemma-Q8_0.gguf": gemma})
    parts = header(parsed("hf://ggml-org/gemma:Q8_0"), NONE, node.settings())
    whole = header(parsed("hf://ggml-org/whole:Q8_0"), NONE, node.settings())
    assert parts.summary is not None
    assert whole.summary is not None
    same = {"files": 1, "file_bytes": whole.summary.file_bytes, "graph": whole.summary.graph}
    assert parts.summary.files == PARTS
    assert parts.summary.model_copy(update=same) == whole.summary
    done = node.get("hf://ggml-org/gemma:Q8_0", key=parts.origin.key if parts.origin else None)
    folder = (node.cache.folder / done.path).parent
    assert [sha256(folder / file.name) for file in done.files] == [sha256(path) for path in paths]
    shutil.rmtree(node.cache.folder)
