"""Which server image serves a device: one table, keyed by backend, driver and processor.

Tags carry a build number, never a rolling tag: a rolling one changes under running users. llama.cpp publishes these
names at ghcr.io/ggml-org/llama.cpp.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

BUILD = "b11434"
"""llama.cpp build that the table, the arguments and the estimate were checked against."""
REPOSITORY = "ghcr.io/ggml-org/llama.cpp"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    backend: str
    architectures: tuple[str, ...]
    image: str
    minimum_driver: int = 0
    """Major version of the vendor's driver that the image needs; 0 = any."""


TABLE: tuple[Row, ...] = (
    # CUDA 12 runs on every driver from major version 525 on (NVIDIA's minor-version compatibility).
    Row("CUDA", ("amd64",), f"{REPOSITORY}:server-cuda-{BUILD}", minimum_driver=525),
    Row("ROCm", ("amd64",), f"{REPOSITORY}:server-rocm-{BUILD}"),
    Row("SYCL", ("amd64",), f"{REPOSITORY}:server-intel-{BUILD}"),
    Row("MUSA", ("amd64",), f"{REPOSITORY}:server-musa-{BUILD}"),
    Row("Vulkan", ("amd64", "arm64"), f"{REPOSITORY}:server-vulkan-{BUILD}"),
    Row(CPU, ("amd64", "arm64"), f"{REPOSITORY}:server-{BUILD}"),
)


def driver_major(version: str | None) -> int | None:
    """Give the major version of `570.133.07`; None when it is not known."""
    head = (version or "").split(".", 1)[0]
    return int(head) if head.isdigit() else None


def server_image(
    backend: str, *, architecture: str = "amd64", driver: str | None = None, overrides: Mapping[str, str] | None = None
) -> str | None:
    """Give the image for a device's backend, or None when none is known. An override of the backend goes first."""
    if overrides and backend in overrides:
        return overrides[backend]
    major = driver_major(driver)
    for row in TABLE:
        fits = major is None or major >= row.minimum_driver
        if row.backend == backend and architecture in row.architectures and fits:
            return row.image
    return None


def known_backends(overrides: Mapping[str, str] | None = None) -> frozenset[str]:
    """Give the backends that have an image."""
    return frozenset(row.backend for row in TABLE) | frozenset(overrides or {})


_KINDS = {"cuda": "CUDA", "rocm": "ROCm", "intel": "SYCL", "musa": "MUSA", "vulkan": "Vulkan"}


def backends_of(image: str) -> frozenset[str] | None:
    """Give the backends that a user's image has, as its tag says in llama.cpp's own manner; None when it says nothing.

    `server-cuda-b11434` has CUDA, `server-b11434` has only the CPU.
    """
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if not tag.startswith("server"):
        return None
    kinds = frozenset(backend for kind, backend in _KINDS.items() if kind in tag.split("-"))
    plain = tag.split("-")[1:2]
    if not kinds and plain and not plain[0].startswith("b"):
        return None
    return kinds


def allowed(image: str, patterns: Sequence[str], overrides: Mapping[str, str] | None = None) -> bool:
    """Tell whether a user may name this image: the table's, an override, or one that matches a glob pattern."""
    if image in {row.image for row in TABLE} | set((overrides or {}).values()):
        return True
    return any(fnmatchcase(image, pattern) for pattern in patterns)


def build_of(image: str) -> str:
    """Give llama.cpp's build from an image's tag, such as b11434; another tag, or digest, as it is."""
    name, _, digest = image.rpartition("/")[2].partition("@")
    tag = name.partition(":")[2]
    build = tag.rpartition("-")[2]
    return (build if build[:1] == "b" and build[1:].isdigit() else tag or digest or "latest")[:128]
