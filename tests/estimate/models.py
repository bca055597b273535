"""Models of published shapes, read from their headers, and what holds for each of their quantizations."""

from functools import cache
from pathlib import Path

from estimate.corpus import SHAPES, metadata, tensors
from paddock.core.division import Estimator
from paddock.core.ggml import ELEMENTS
from paddock.core.gguf import GgufMetadata, read_gguf
from paddock.core.quantize import MIXES, requantized
from paddock.core.summary import summarize
from support.gguf_writer import data_bytes, header


@cache
def parts(name: str) -> list[GgufMetadata]:
    """Give the header of a published shape as the reader gives it."""
    rows = tensors(SHAPES[name])
    head = header(metadata(SHAPES[name]), rows)
    return [read_gguf(lambda offset, length: head[offset : offset + length], len(head) + data_bytes(rows))]


def estimator_of(path: Path) -> Estimator:
    """Give the estimator of the model in a file."""
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        found = [read_gguf(read, path.stat().st_size)]
    return Estimator(found, summarize(found))


def size(model: list[GgufMetadata]) -> int:
    """Give the bytes of all tensors."""
    return sum(tensor.bytes for part in model for tensor in part.tensors)


def check_mixes(model: list[GgufMetadata]) -> None:
    """Assert that the mixes fall in size, and keep names, whole blocks and the number of parameters."""
    mixes = [requantized(model, mix) for mix in MIXES]
    sizes = [size(other) for other in mixes]
    assert sizes == sorted(sizes, reverse=True)
    names, parameters = [tensor.name for tensor in model[0].tensors], summarize(model).parameters
    for other in mixes:
        assert [tensor.name for tensor in other[0].tensors] == names
        assert [one.name for one in other[0].tensors if one.shape[0] % ELEMENTS[one.type].block] == []
        expected = [one.elements // ELEMENTS[one.type].block * ELEMENTS[one.type].bytes for one in other[0].tensors]
        assert [one.bytes for one in other[0].tensors] == expected
        assert summarize(other).parameters == parameters
