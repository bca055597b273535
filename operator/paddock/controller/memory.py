"""The memory of this process."""

import ctypes
import gc

MANY_LOOKS, SOME_LOOKS = 500, 50
"""After so many looks there is memory to be handed back; after some, once no more of them come."""


class Tidy:
    """Hands back the memory of what was read and looked at; by itself the GNU C library keeps it for ever."""

    def __init__(self) -> None:
        self._last, self._handed_back, self._due = 0, 0, False

    def lists_were_read(self) -> None:
        """Note that everything was read anew."""
        self._due = True

    def look(self, looks: int) -> None:
        """Hand memory back if that is worth its twentieth of a second; `looks` are all so far."""
        since, rests = looks - self._handed_back, looks == self._last
        self._last = looks
        if self._due or since >= MANY_LOOKS or (rests and since >= SOME_LOOKS):
            self._due, self._handed_back = False, looks
            hand_back_memory()


def hand_back_memory() -> None:
    """Give the memory of lists that were read back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
