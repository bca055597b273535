"""Opens a source: which files it has, which content they are, and their bytes by ranges."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from paddock.core.source import RemoteSource
from paddock.fetch.credentials import Credentials
from paddock.fetch.settings import Settings


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source, and which content it had when the source was opened."""

    name: str
    """Without folders."""
    size: int
    """Bytes."""
    address: str
    """How the transport finds it; may be secret (a signature)."""
    digest: str | None = None
    """sha256:HEX, where the source tells it beforehand."""
    etag: str | None = None
    """What the server calls this version."""


class Body(Protocol):
    """Bytes of one range as they arrive."""

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of the buffer; 0 = the end. Raises FetchError."""


class Transport(Protocol):
    """Gets ranges of files; used by several threads at once. Every method raises FetchError."""

    def body(self, file: RemoteFile, offset: int, length: int) -> AbstractContextManager[Body]:
        """Ask for `length` bytes from `offset` of exactly this version of the file (Corrupt where it has changed)."""

    def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True)
class Remote:
    """An open source."""

    source: str
    """As it was asked for, without what may be secret."""
    pinned: str
    """A source that means the same content later, where there is one."""
    files: Sequence[RemoteFile]
    """All parts of a split model in order."""
    transport: Transport
    license: str | None = None
    """As the repository or the artifact names it."""

    def read(self, file: RemoteFile, offset: int, length: int) -> bytes:
        """Give at most `length` bytes from `offset`, in one request; fewer only at the end. Raises FetchError."""
        raise NotImplementedError


def open_source(source: RemoteSource, credentials: Credentials, settings: Settings) -> AbstractContextManager[Remote]:
    """Look at a source: its files, sizes and identity. Raises FetchError."""
    raise NotImplementedError


def content_key(files: Sequence[RemoteFile]) -> str:
    """Name the content of files: 32 hexadecimal digits, the same for the same names, sizes and identities."""
    raise NotImplementedError


def walk(remote: Remote) -> Iterator[RemoteFile]:
    """Give the files in order."""
    yield from remote.files
