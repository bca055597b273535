"""What no formula knows: driver context, kernels, pools, and the padding of a backend's allocator."""

from typing import Final

from paddock.core.quantity import MIB

CONTEXT: Final = {
    "generic": 0,
    "cuda": 512 * MIB,
    "hip": 512 * MIB,
    "vulkan": 512 * MIB,
    "sycl": 512 * MIB,
    "metal": 512 * MIB,
}
"""Bytes on the device beside the model: context, kernels, library workspaces, pools. Starting values, not measured.

CUDA: reports name 93 to 300 MiB for listing a device, 150 to 600 MiB for a context with kernels (Ollama plans with
457 MiB, gguf-parser with 250 MiB) and up to 125 MiB of pool at the first prompt; the others are taken to be like it
for want of any report.
"""
UNKNOWN_CONTEXT: Final = max(CONTEXT.values())
"""For a backend that is not in the table."""
DEVICE_ALIGNMENT: Final = {"generic": 32, "cuda": 128, "hip": 128, "vulkan": 256, "sycl": 128, "metal": 32}
"""Bytes that each tensor in a buffer begins at a multiple of; Vulkan's is the largest that its drivers ask for."""
UNKNOWN_ALIGNMENT: Final = max(DEVICE_ALIGNMENT.values())
"""For a backend that is not in the table."""
TENSOR_PADDING: Final = 768
"""Bytes: most that a GPU backend adds to one tensor: alignment to 128 and rows padded to 512 elements of Q8_K."""
SLACK: Final = 64 * MIB
"""Bytes, or a hundredth of the rest if that is more: allocator granularity and what changes between builds."""
HOST_PROCESS: Final = 300 * MIB
"""Bytes of host memory for the server process: code, libraries, threads, HTTP, tokenizer."""


def slack(backend: str, rest: int) -> int:
    """Give the bytes that are planned in addition to `rest`; none for the generic device, which is to be exact."""
    return 0 if backend == "generic" else max(SLACK, rest // 100)
