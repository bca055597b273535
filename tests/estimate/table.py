"""The committed table: llama.cpp's own numbers for every model and option set, and the headers of its test models."""

import json
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from estimate import corpus, encoders
from estimate.corpus import SHAPES
from estimate.encoders import ENCODERS
from estimate.options import option_set, options_of
from paddock.api.report import HeaderSummary
from paddock.core.geometry import Options
from paddock.core.gguf import read_gguf
from paddock.core.summary import summarize
from support.gguf_writer import Spec, Value, data_bytes, header

HERE: Final = Path(__file__).parent
TABLE: Final = HERE / "measured.json"
"""By model and option set: [weights, cache, compute] on the device and on the host, in bytes, or why it was refused."""
HEADERS: Final = HERE / "architectures.tar.xz"
"""Header of each file that llama.cpp's test-llama-archs writes."""
PUBLISHED: Final = HERE / "published.tar.xz"
"""Headers with the shapes of published models beside those of corpus.py: latent attention, hybrids, recurrent ones."""


class Measured(NamedTuple):
    """What llama.cpp says."""

    device: list[int]
    host: list[int]


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text())
    return found


def build() -> int:
    """Give llama.cpp's build that the table is of."""
    return int(_table()["build"])


def architectures() -> list[str]:
    """Name the test models, one or two per architecture."""
    return list(_headers(HEADERS))


def published() -> list[str]:
    """Name the models with published shapes."""
    return [*SHAPES, *_headers(PUBLISHED)]


def encoding() -> list[str]:
    """Name the encoders."""
    return list(ENCODERS)


def parts(name: str) -> tuple[Mapping[str, Value], list[Spec]] | None:
    """Give metadata and tensor table of a model of corpus.py or encoders.py."""
    if name in SHAPES:
        return corpus.metadata(SHAPES[name]), corpus.tensors(SHAPES[name])
    return (encoders.metadata(ENCODERS[name]), encoders.tensors(ENCODERS[name])) if name in ENCODERS else None


def measured(name: str) -> dict[str, Measured | str]:
    """Give what was measured of a model by option set; a text where llama.cpp refused."""
    sets = _table()["models"][name]["sets"]
    return {key: value if isinstance(value, str) else Measured(*value) for key, value in sets.items()}


@cache
def _headers(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {one.name: file.read() for one in archive if (file := archive.extractfile(one))}


def head(name: str) -> tuple[bytes, int]:
    """Give the header of a model and the size of its file."""
    found = _headers(HEADERS).get(name) or _headers(PUBLISHED)[name]
    return found, int(_table()["models"][name]["bytes"])


def heads(path: Path) -> dict[str, tuple[bytes, int]]:
    """Give every header of an archive and the size of its file."""
    return {name: head(name) for name in _headers(path)}


@cache
def summary(name: str) -> HeaderSummary:
    """Summarize the header of a model of the table."""
    found = parts(name)
    if found is not None:
        start = header(*found)
        size = len(start) + data_bytes(found[1])
    else:
        start, size = head(name)
    return summarize([read_gguf(lambda offset, length: start[offset : offset + length], size)])


def options(name: str) -> Options:
    """Give an option set as the estimate takes it."""
    return options_of(option_set(name))
