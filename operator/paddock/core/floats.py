"""Numbers as llama.cpp's floats of 32 bits hold them."""

import struct


def single(value: float) -> float:
    """Give the nearest float of 32 bits."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
