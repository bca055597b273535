"""Reads model headers from the node's file system: only regular files below the declared roots, never the weights."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from paddock.api.report import HeaderAnswer, HeaderFault
from paddock.core.gguf import GgufError, GgufMetadata, read_gguf
from paddock.core.header import summary_of
from paddock.core.split import read_parts

SERVER_USER: Final = 65532
"""User and group that servers run as; a file that only root can read is of no use to them."""

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _FaultError(Exception):
    """Carries a fault out of the depths."""

    def __init__(self, fault: HeaderFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_header(path: str, roots: Sequence[str]) -> HeaderAnswer:
    """Summarize the model at `path`, with all parts of a split one; what is wrong is a fault, never an exception.

    Blocks as long as the file system does. Symbolic links are followed as long as they stay below the roots.
    """
    try:
        return HeaderAnswer(summary=summary_of(_read_parts(path, roots)))
    except _FaultError as error:
        return HeaderAnswer(fault=error.fault)
    except GgufError as error:
        return HeaderAnswer(fault=HeaderFault(code=error.kind, message=f"{path}: {error}"))


def _read_parts(path: str, roots: Sequence[str]) -> list[GgufMetadata]:
    folder, name = os.path.split(path)
    return read_parts(name, lambda sibling: _read_part(f"{folder}/{sibling}", roots))


def _read_part(path: str, roots: Sequence[str]) -> GgufMetadata:
    try:
        with _opened(path, roots) as (descriptor, size):
            return read_gguf(lambda offset, length: _read_fully(descriptor, offset, length), size)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _fault("ModelNotFound", f"{path}: there is no such file") from error
    except OSError as error:
        raise _fault("ModelUnreadable", f"{path}: {error.strerror or error}") from error
    except GgufError as error:
        raise _fault(error.kind, f"{path}: {error}") from error


@contextmanager
def _opened(path: str, roots: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Open a regular file below the roots; gives its descriptor and size, raises OSError and _FaultError."""
    resolved = _resolve(path, roots)
    _check_regular(path, os.lstat(resolved))  # before open, which may have effects on a device
    descriptor = os.open(resolved, _FLAGS)
    try:
        opened = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not _below(opened, roots):  # a folder was exchanged meanwhile
            raise _refused(path, roots)
        found = os.fstat(descriptor)
        _check_regular(path, found)
        _check_readable(path, found)
        yield descriptor, found.st_size
    finally:
        os.close(descriptor)


def _resolve(path: str, roots: Sequence[str]) -> str:
    if not path.startswith("/") or "\0" in path:
        raise _refused(path, roots)
    if not any(_within(os.path.normpath(path), os.path.normpath(root)) for root in roots):
        raise _refused(path, roots)
    resolved = os.path.realpath(path)
    if not _below(resolved, roots):
        raise _refused(path, roots)
    return resolved


def _below(resolved: str, roots: Sequence[str]) -> bool:
    return any(_within(resolved, os.path.realpath(root)) for root in roots)


def _within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _check_regular(path: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise _fault("ModelUnreadable", f"{path}: is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise _fault("ModelUnreadable", f"{path}: is not a regular file")


def _check_readable(path: str, found: os.stat_result) -> None:
    """Fail when only root's power lets this process read the file: the server would not get it."""
    if os.geteuid() != 0:
        return
    bit = stat.S_IROTH
    if found.st_uid == SERVER_USER:
        bit = stat.S_IRUSR
    elif found.st_gid == SERVER_USER:
        bit = stat.S_IRGRP
    if not found.st_mode & bit:
        mode = stat.filemode(found.st_mode)
        raise _fault("ModelUnreadable", f"{path}: user {SERVER_USER} may not read it ({mode})")


def _read_fully(descriptor: int, offset: int, length: int) -> bytes:
    """Read until length or the end; a network file system may give less at once."""
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _refused(path: str, roots: Sequence[str]) -> _FaultError:
    allowed = ", ".join(sorted(roots)) or "none is declared"
    return _fault("SourceRefused", f"{path!r} is not below a model root ({allowed})")


def _fault(code: str, message: str) -> _FaultError:
    return _FaultError(HeaderFault.model_validate({"code": code, "message": message}))
