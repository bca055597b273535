"""What the program `paddock-fetch` says: one JSON object a line on standard output, one of these models each."""

from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model

FailureClass = Literal["Unauthorized", "NotFound", "Untrusted", "OutOfSpace", "Unreachable", "Corrupt"]
"""Why a source cannot be read or fetched.

Unauthorized: a credential is missing, wrong or not enough. NotFound: no such file, repository, bucket or tag.
Untrusted: the certificate of the server, or an address that must not be followed. OutOfSpace: the cache is too small.
Unreachable: the network, or the server's own fault, for longer than was waited. Corrupt: bytes are not those promised.
"""

EXIT_CODES: dict[FailureClass, int] = {
    "Unauthorized": 3,
    "NotFound": 4,
    "Untrusted": 5,
    "OutOfSpace": 6,
    "Unreachable": 7,
    "Corrupt": 8,
}
"""Exit codes of `paddock-fetch`; 0 = done, 1 = a fault of the program, 2 = wrong arguments or settings."""

Size = Annotated[int, Field(ge=0)]


class SourceFile(Model):
    """One file of a source."""

    name: str
    """File name without folders, as it is called in the cache."""
    bytes: Size
    """Size."""
    digest: str | None = None
    """sha256:HEX, where the source tells it beforehand."""
    etag: str | None = None
    """What the server calls this version of the file, where it tells one."""


class Origin(Model):
    """Which content a source had when it was looked at."""

    source: str
    """As it was asked for, without what may be secret."""
    pinned: str
    """A source that means the same content later: the commit, the manifest's digest; else the source itself."""
    key: str
    """Names the content: of digests and sizes, or where there is no digest, of the server's word for the version."""
    path: str
    """Of the first file, relative to the cache: models/KEY/NAME."""
    files: list[SourceFile]
    """All parts in order."""
    bytes: Size
    """Of all files."""
    license: str | None = None
    """As the file or its repository names it."""
    quantization: str | None = None
    """Of most tensors, for example Q4_K_M."""


class Further(Model):
    """An argument of `paddock-fetch get --beside`: another content that is fetched in the same run."""

    source: str
    """Where it is."""
    name: str = ""
    """What messages call it."""
    key: str | None = None
    """The content that is expected."""
    bytes: Size = 0
    """Of all its files, where that is known: for the per cent of the whole."""
    sha256: str | None = None
    """What its only file must have."""
    credentials: str | None = None
    """Folder of a mounted Secret."""


class Progress(Model):
    """A line of `paddock-fetch get`: how far it is, at most one a second."""

    event: Literal["progress"] = "progress"
    file: str
    """The file that is being fetched."""
    bytes: Size
    """Here already, of all files."""
    total: Size
    """Size of all files."""
    percent: Annotated[float, Field(ge=0, le=100)]
    """Share that is here already."""
    bytes_per_second: Size
    """Over the last ten seconds."""
    waiting_for: str | None = None
    """What is waited for: another process that fetches the same file, or the server."""


class Done(Model):
    """The last line of `paddock-fetch get`: the model is in the cache."""

    event: Literal["done"] = "done"
    key: str
    """Names the content, as in Origin."""
    path: str
    """Of the first file, relative to the cache."""
    files: list[SourceFile]
    """With their digests, which are known now."""
    bytes: Size
    """Of all files."""
    fetched: Size
    """Bytes that came over the network in this run; 0 = all was here already."""
    seconds: Annotated[float, Field(ge=0)]
    """How long it took."""


class Failed(Model):
    """The last line of `paddock-fetch get` or a part of a SourceAnswer: why not."""

    event: Literal["failed"] = "failed"
    failure: FailureClass
    """The kind."""
    message: str
    """In a sentence, with the numbers that count; never a secret."""
    retry: bool
    """Whether the same may work later without a change by anybody."""
