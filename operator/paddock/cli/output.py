"""Words that options take, and the line for problems; apart from the screen, which takes longer to import."""

import sys
from enum import StrEnum


class Output(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class CacheName(StrEnum):
    """Types of the cache that llama-server takes."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    IQ4_NL = "iq4_nl"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"


class CacheAction(StrEnum):
    """What `paddock cache` does."""

    LIST = "list"
    PREFETCH = "prefetch"
    CLEAR = "clear"
    VERIFY = "verify"


class PoolingName(StrEnum):
    """How embeddings of tokens become one, by llama-server's names."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"


class Flash(StrEnum):
    """When FlashAttention is used."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class Backend(StrEnum):
    """Kinds of devices that an estimate is made for."""

    GENERIC = "generic"
    CUDA = "cuda"
    HIP = "hip"
    VULKAN = "vulkan"
    SYCL = "sycl"
    METAL = "metal"


class SplitMode(StrEnum):
    """What is divided over several devices."""

    NONE = "none"
    LAYER = "layer"
    ROW = "row"
    TENSOR = "tensor"


def complain(message: str) -> None:
    """Tell what went wrong, in one line on stderr."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
