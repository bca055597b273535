"""An open source: its files, which content they are, and their bytes by ranges."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from paddock.fetch.failures import FetchError
from paddock.fetch.web import Authorizer, Web, WebRange, range_total

_KEY_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source, and which content it had when the source was opened."""

    name: str
    """Without folders."""
    size: int
    """Bytes."""
    address: str = field(repr=False)
    """How the transport finds it; may be secret (a signature)."""
    digest: str | None = None
    """sha256:HEX, where the source tells it beforehand."""
    etag: str | None = None
    """What the server calls this version; ranges of another one are refused."""
    version: str | None = None
    """A weaker word for the version, such as a date, where there is nothing better."""
    ranges: bool = True
    """Whether the server gives ranges; otherwise only the whole file at once."""

    @property
    def identity(self) -> str:
        """Name the content as well as the source allows."""
        if self.digest:
            return self.digest
        word = self.etag or self.version or ""
        text = json.dumps([self.address.partition("?")[0], self.size, word])
        return "id:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def resumable(self) -> bool:
        """Whether a later process can tell that it still is the same content."""
        return self.ranges and bool(self.digest or self.etag or self.version)


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
    heads: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """First bytes of files that came when they were looked at, by name."""

    @property
    def key(self) -> str:
        """Name the content of all files."""
        return content_key(self.files)

    def read(self, file: RemoteFile, offset: int, length: int) -> bytes:
        """Give at most `length` bytes from `offset`, in one request; fewer only at the end. Raises FetchError."""
        length = max(0, min(length, file.size - offset))
        head = self.heads.get(file.name, b"")
        if offset + length <= len(head):
            return head[offset : offset + length]
        if offset == 0 and head and length > len(head):
            return head + self._fetch(file, len(head), length - len(head))
        return self._fetch(file, offset, length)

    def _fetch(self, file: RemoteFile, offset: int, length: int) -> bytes:
        whole = bytearray(length)
        view = memoryview(whole)
        with self.transport.body(file, offset, length) as body:
            while view and (count := body.readinto(view)):
                view = view[count:]
        return bytes(whole)


def content_key(files: Sequence[RemoteFile]) -> str:
    """Name the content of files: 32 hexadecimal digits, the same for the same names, sizes and identities."""
    text = json.dumps([[file.name, file.size, file.identity] for file in files])
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


class WebTransport:
    """Ranges by HTTP."""

    def __init__(self, web: Web, authorizer: Authorizer) -> None:
        self.web = web
        self._authorizer = authorizer

    @contextmanager
    def body(self, file: RemoteFile, offset: int, length: int) -> Iterator[Body]:
        """Ask for a range of exactly this version of the file."""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"} if file.ranges else {}
        if file.etag and file.ranges:
            headers["If-Range"] = file.etag
        with self.web.get(file.address, self._authorizer, headers, remember=True) as answer:
            total = range_total(answer, offset)
            if total is None:
                total = answer.length
                if file.etag and answer.etag != file.etag:
                    raise _changed(file)
                if offset or (total is None and file.size != length):
                    raise FetchError("Unreachable", f"{answer.server} gives whole files only, no ranges")
            if (total is not None and total != file.size) or (file.etag and answer.etag not in (None, file.etag)):
                raise _changed(file)
            yield WebRange(answer, length)

    def close(self) -> None:
        """Close all connections."""
        self.web.close()


def _changed(file: RemoteFile) -> FetchError:
    return FetchError("Corrupt", f"{file.name} has changed at its source while it was fetched", changed=True)


def safe_name(path: str) -> str:
    """Give the last part of a path as a name that is one visible file in a folder, whoever made it up."""
    name = path.rpartition("/")[2]
    cleaned = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "._-+=@" else "_" for letter in name
    )
    return cleaned.lstrip(".")[-200:] or "model.gguf"
