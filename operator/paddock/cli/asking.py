"""The options of `paddock estimate`, most of them llama-server's."""

from pathlib import Path
from typing import Annotated

import typer

from paddock.cli.output import Backend, CacheName, Flash
from paddock.cli.problem import Problem

MOST_TOKENS = 2**31 - 1
"""Largest number of tokens that llama.cpp's options hold."""
MOST_SLOTS = 256
"""LLAMA_MAX_SEQ."""
MOST_LAYERS = 512
"""LLAMA_MAX_LAYERS."""

ModelFile = Annotated[
    str, typer.Argument(metavar="FILE|URL", help="A GGUF file, or the first of a split model's.", show_default=False)
]
ContextSize = Annotated[
    int,
    typer.Option(min=0, max=MOST_TOKENS, metavar="N", help="llama-server's -c: tokens of all slots; 0: as trained."),
]
Slots = Annotated[int, typer.Option(min=1, max=MOST_SLOTS, metavar="K", help="Slots.")]
Unified = Annotated[bool, typer.Option("--kv-unified/--no-kv-unified", help="One cache that all slots share.")]
KeyType = Annotated[CacheName, typer.Option(metavar="T", help="Type of cached keys: f16, q8_0, q4_0 and so on.")]
ValueType = Annotated[
    CacheName, typer.Option(metavar="T", help="Type of cached values; one with blocks needs FlashAttention.")
]
Batch = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, metavar="N", help="llama-server's -b.")]
Ubatch = Annotated[
    int, typer.Option(min=1, max=MOST_TOKENS, metavar="N", help="llama-server's -ub: tokens computed at once.")
]
FlashAttention = Annotated[Flash, typer.Option(metavar="on|off|auto", help="FlashAttention.")]
Embeddings = Annotated[bool, typer.Option("--embeddings", help="A server that gives embeddings or ranks.")]
GpuLayers = Annotated[str, typer.Option(metavar="N|all", help="Layers on the device, the output layer counted as one.")]
ExpertsOnHost = Annotated[
    int,
    typer.Option(min=0, max=MOST_LAYERS, metavar="N", help="So many layers keep their experts in host memory."),
]
BackendName = Annotated[
    Backend, typer.Option(metavar="|".join(Backend), help="Kind of device; generic is one without extras.")
]
Budget = Annotated[str | None, typer.Option(metavar="SIZE", help="Device memory that may be used, for example 24GiB.")]
DeviceSpeed = Annotated[
    float | None, typer.Option(min=1, metavar="GB/s", help="Bandwidth of the device's memory, for the ceiling.")
]
HostSpeed = Annotated[
    float | None, typer.Option(min=1, metavar="GB/s", help="Bandwidth of the host's memory, for the ceiling.")
]
Measure = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Ask llama.cpp itself, or never; by default where its libraries are at hand.",
        show_default=False,
    ),
]
Library = Annotated[
    Path | None,
    typer.Option(
        envvar="PADDOCK_LLAMA_CPP", metavar="FOLDER", help="Folder of llama.cpp's libraries.", show_default=False
    ),
]


def layers_of(text: str) -> int | None:
    """Read a number of layers; None for all. Raises Problem."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_TOKENS))):
        raise Problem(f"--gpu-layers {text}: give a number of layers, or all", 2)
    return int(text)


def per_second(gigabytes: float | None) -> int | None:
    """Give bytes per second."""
    return None if gigabytes is None else int(gigabytes * 10**9)
