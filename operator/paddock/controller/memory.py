"""The memory of this process."""

import ctypes
import gc


def hand_back_memory() -> None:
    """Give the memory of lists that were read back to the system; by itself the GNU C library keeps it for ever."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
