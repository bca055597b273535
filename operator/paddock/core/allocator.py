"""The allocator of compute buffers (ggml-alloc.c of llama.cpp build 11434, ggml_dyn_tallocr), without the memory.

Its peak grows with all sizes alike, and with one more block. It need not grow with a single size: a smaller block
leaves a smaller hole, which the next may not fit. Where blocks go newest first it does.
"""

from typing import Final

ALIGNMENT: Final = 32
"""Bytes that every size is rounded up to on a CPU, and so behind RPC to one."""
_ENDLESS: Final = 2**62


class Allocator:
    """Gives and takes back ranges of one growing buffer; `peak` is its size in bytes."""

    __slots__ = ("_offsets", "_sizes", "peak")

    def __init__(self) -> None:
        self.peak = 0
        self._offsets = [0]
        self._sizes = [_ENDLESS]

    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Give what the future depends on beside the peak: the free ranges."""
        return tuple(self._offsets), tuple(self._sizes)

    def restore(self, state: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        """Go back to free ranges; the peak stays."""
        self._offsets, self._sizes = list(state[0]), list(state[1])

    def take(self, size: int) -> int:
        """Give the offset of a range of `size` aligned bytes: the smallest free one that holds it, else the last."""
        sizes = self._sizes
        best, least = len(sizes) - 1, _ENDLESS
        for position in range(best):
            free = sizes[position]
            if size <= free <= least:
                best, least = position, free
        offset = self._offsets[best]
        if sizes[best] == size:
            del sizes[best], self._offsets[best]
        else:
            sizes[best] -= size
            self._offsets[best] = offset + size
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Take a range back, joined with the free ones beside it."""
        if not size:
            return
        offsets, sizes = self._offsets, self._sizes
        position = 0
        while position < len(offsets) and offsets[position] < offset:
            position += 1
        if position and offsets[position - 1] + sizes[position - 1] == offset:
            position -= 1
            sizes[position] += size
        else:
            offsets.insert(position, offset)
            sizes.insert(position, size)
        if position + 1 < len(offsets) and offsets[position] + sizes[position] == offsets[position + 1]:
            sizes[position] += sizes.pop(position + 1)
            del offsets[position + 1]


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to the alignment."""
    return -(-size // alignment) * alignment
