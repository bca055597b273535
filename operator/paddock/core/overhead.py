"""What no formula knows: driver context, kernels, pools, and the padding of a backend's allocator.

What servers were seen to take is kept on the GPU object and goes before the tables here.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from paddock.api.gpu import Learned
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
BACKENDS: Final = {
    "CUDA": "cuda",
    "MUSA": "cuda",
    "ROCm": "hip",
    "SYCL": "sycl",
    "Vulkan": "vulkan",
    "Metal": "metal",
    "RPC": "rpc",
}
"""The kind of device by ggml's name of its backend."""
OTHER: Final = "other"
"""A backend that is not in the table."""
UNKNOWN: Final = "unknown"
"""Planned with the largest of each margin."""
OVERHEAD: Final = {name: CONTEXT.get(backend, UNKNOWN_CONTEXT) for name, backend in BACKENDS.items()}
"""Bytes on the device beside the model, by ggml's name of the backend."""
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


MOST_LEARNED: Final = 8
"""Backends and builds that one device remembers."""
LEAST_CONTEXT: Final = 128 * MIB
"""Bytes of a driver's share that are planned however little was seen."""
MOST_CONTEXT: Final = 8 * 1024 * MIB
"""Bytes that are believed at most, so that one wrong figure of a driver takes no device out of use."""
MOST_LOWERED: Final = max(OVERHEAD.values()) - LEAST_CONTEXT
"""Bytes by which what was learned lowers a planned overhead at most."""
LEARNED_MARGIN: Final = 64 * MIB
"""Bytes beside the most that a driver showed: one more kernel, a larger pool."""


def learn(known: Sequence[Learned], seen: Learned) -> list[Learned]:
    """Give what is known after one more server was seen: for its backend and build the most of both, as the last."""
    seen = seen.model_copy(
        update={
            "buffers_bytes": _believed(seen.buffers_bytes),
            "process_bytes": None if seen.process_bytes is None else _believed(seen.process_bytes),
        }
    )
    same = next((one for one in known if (one.backend, one.build) == (seen.backend, seen.build)), None)
    if same is None:
        return [*known, seen][-MOST_LEARNED:]
    processes = [one.process_bytes for one in (same, seen) if one.process_bytes is not None]
    most = same.model_copy(
        update={
            "buffers_bytes": max(same.buffers_bytes, seen.buffers_bytes),
            "process_bytes": max(processes, default=None),
        }
    )
    return [most if one is same else one for one in known]


def _believed(size: int) -> int:
    return min(max(size, 0), MOST_CONTEXT)


def more_than_planned(backend: str, known: Iterable[Learned]) -> int:
    """Give by how many bytes the planned overhead of a device with this backend (ggml's name) is raised, or lowered.

    What a driver showed takes the place of the table's figure, which is a guess; it is never planned with less than
    the most that was seen. A server's log shows its buffers alone, so that it can only raise the table's figure.
    """
    mine = [one for one in known if one.backend == backend]
    planned = OVERHEAD.get(backend, UNKNOWN_CONTEXT)
    buffers = max((_believed(one.buffers_bytes) for one in mine), default=0)
    shown = [_believed(one.process_bytes) for one in mine if one.process_bytes is not None]
    if not shown:
        return buffers
    return max(max(shown) + LEARNED_MARGIN, buffers, LEAST_CONTEXT) - planned
