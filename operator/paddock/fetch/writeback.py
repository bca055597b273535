"""Has the kernel begin to write what has arrived, so that little is left to wait for at the end."""

import ctypes
from typing import Final

_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE: begin, wait for nothing."""


def begin_writing(descriptor: int, offset: int, length: int) -> None:
    """Begin to bring a range of a file to the disk. A hint, which promises nothing."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, length, _WRITE)


def _found() -> "ctypes._NamedFuncPointer | None":
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range: Final = _found()
