"""Locks and leases between the processes of a node: flock, and the kernel's own word for files that are open.

A killed process loses its locks at once, so that nothing here has to time out or be taken away.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_F_SETSIG: Final = 10
"""Of fcntl.h; Python does not name it."""
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


def try_lock(path: Path) -> int | None:
    """Take the exclusive lock of a file that is made for it; gives its descriptor, or None while another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _BUSY:
                return None
            raise
        if _still_there(descriptor, path):
            return descriptor
        os.close(descriptor)  # its former owner has removed it meanwhile


def unlock(path: Path, descriptor: int) -> None:
    """Remove the file of a lock that is held, and give up the lock."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file that stays; waits for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lease(path: Path) -> int | None:
    """Hold a file so that no cleanup removes it; gives the descriptor to close, or None where it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _still_there(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def in_use(path: Path) -> bool:
    """Tell whether any process of this node holds a lease on a file, has it open, or has it mapped.

    The kernel grants a write lease only on a file that nobody else has open: servers need not know of us. Where the
    file system or the owner of the file does not allow that question, only our own leases count.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)  # if somebody opens it this very moment; SIGIO would kill
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(descriptor)
    return False


def _still_there(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
