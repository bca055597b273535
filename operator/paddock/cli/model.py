"""A model that is named on the command line: a file, or an address; with all parts of a split one."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paddock.api.report import HeaderSummary
from paddock.cli.problem import Problem
from paddock.cli.remote import Remote
from paddock.core.gguf import MAX_HEADER, GgufError, GgufMetadata, Source, read_gguf
from paddock.core.split import read_parts
from paddock.core.summary import summarize

_Read = Callable[[str], GgufMetadata]
_WEB = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True)
class Header:
    """One file's header as it was read."""

    name: str
    metadata: GgufMetadata
    read: Source
    """Reads the file again."""

    @cached_property
    def raw(self) -> bytes:
        """The header's bytes, up to the weights."""
        return self.read(0, min(self.metadata.data_offset, MAX_HEADER))


@dataclass(frozen=True)
class Model:
    """A model with all its headers."""

    given: str
    """As the user named it."""
    summary: HeaderSummary
    headers: tuple[Header, ...]
    path: Path | None
    """The first file, when it is on this machine."""

    @property
    def parts(self) -> list[GgufMetadata]:
        """The headers, file by file."""
        return [header.metadata for header in self.headers]

    def digest(self) -> str:
        """Give the SHA-256 of all headers; raises Problem."""
        found = hashlib.sha256()
        for header in self.headers:
            found.update(header.raw)
        return found.hexdigest()

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Give a path that llama.cpp can read the header at; raises Problem and MeasureError."""
        if self.path is not None:
            yield self.path
            return
        from paddock.agent.measure import sparse_copies  # noqa: PLC0415 start-up time

        with sparse_copies([(one.name, one.raw, one.metadata.file_bytes) for one in self.headers]) as path:
            yield path


def read_model(given: str) -> Model:
    """Read the headers of a model; raises Problem."""
    if _WEB.match(given):
        return _from_web(given)
    if given.lower().startswith("file://"):
        return _from_disk(given, given[len("file://") :])
    if _SCHEME.match(given):
        raise Problem(f"{given} is no address of a file on the web (http, https); download it and name the copy", 2)
    return _from_disk(given, given)


def read_header(given: str) -> GgufMetadata:
    """Read the header of one file that need be no model; raises Problem."""
    if not _WEB.match(given):
        return _read_file(Path(given.removeprefix("file://")))
    remote = Remote(given)
    try:
        return read_gguf(remote.read, remote.size)
    except GgufError as error:
        raise _wrong(given, error) from error


def _from_web(url: str) -> Model:
    first = Remote(url)
    headers: list[Header] = []

    def read(name: str) -> GgufMetadata:
        remote = first if not headers else Remote(first.sibling(name))
        try:
            metadata = read_gguf(remote.read, remote.size)
        except GgufError as error:
            raise _wrong(remote.url, error) from error
        headers.append(Header(f"part-{len(headers) + 1}", metadata, remote.read))
        return metadata

    return _model(url, first.name, read, headers, None)


def _from_disk(given: str, path: str) -> Model:
    headers: list[Header] = []
    folder = Path(path).parent

    def read(name: str) -> GgufMetadata:
        file = folder / name
        metadata = _read_file(file)
        headers.append(Header(name, metadata, lambda offset, length: _bytes_of(file, offset, length)))
        return metadata

    return _model(given, Path(path).name, read, headers, Path(path).resolve())


def _model(given: str, name: str, read: _Read, headers: list[Header], path: Path | None) -> Model:
    try:
        summary = summarize(read_parts(name, read))
    except GgufError as error:
        raise _wrong(given, error) from error
    count = len(headers)
    named = (
        headers
        if count == 1 or path
        else [
            Header(f"part-{number:05}-of-{count:05}.gguf", one.metadata, one.read)
            for number, one in enumerate(headers, 1)
        ]
    )
    return Model(given, summary, tuple(named), path)


def _read_file(file: Path) -> GgufMetadata:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Problem(f"{file}: {error.strerror or error}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Problem(f"{file} is not a regular file")
        return read_gguf(lambda offset, length: os.pread(descriptor, length, offset), found.st_size)
    except GgufError as error:
        raise _wrong(str(file), error) from error
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def _bytes_of(file: Path, offset: int, length: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(length)
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror or error}") from error


def _wrong(name: str, error: GgufError) -> Problem:
    advice = {
        "NotGguf": "it is no GGUF file",
        "ModelTruncated": "the file is incomplete; download it again",
        "ModelUnsupported": "it cannot be served",
    }[error.kind]
    return Problem(f"{name}: {error}; {advice}")
