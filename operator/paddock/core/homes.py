"""Which device each layer of a model is on."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from paddock.core.floats import single

HOST: Final = -1


def homes(layers: int, on_device: int, shares: Sequence[float]) -> list[int]:
    """Give the device of each layer, and of the output as one more; HOST for those before the last `on_device` ones.

    As src/llama-model.cpp:1591-1620 does it, in its floats of 32 bits.
    """
    sums = [single(one) for one in accumulate(map(single, shares or (1.0,)), lambda a, b: single(a + b))]
    ends = [single(one / sums[-1]) for one in sums]
    first = layers + 1 - on_device
    return [
        HOST if layer < first else bisect_right(ends, single((layer - first) / on_device))
        for layer in range(layers + 1)
    ]
