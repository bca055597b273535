"""The options of `paddock estimate`, most of them llama-server's."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from paddock.cli.output import Backend, CacheName, Flash, PoolingName, SplitMode
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
Pooled = Annotated[
    PoolingName | None,
    typer.Option(metavar="|".join(PoolingName), help="How embeddings are pooled; by default as the file says."),
]
GpuLayers = Annotated[str, typer.Option(metavar="N|all", help="Layers on the device, the output layer counted as one.")]
ExpertsOnHost = Annotated[
    int,
    typer.Option(min=0, max=MOST_LAYERS, metavar="N", help="So many layers keep their experts in host memory."),
]
AllExpertsOnHost = Annotated[bool, typer.Option("--cpu-moe", help="All layers keep their experts in host memory.")]
Shares = Annotated[
    str | None,
    typer.Option("--tensor-split", metavar="N0,N1,...", help="Shares of several devices, as llama-server's -ts."),
]
SplitModeName = Annotated[
    SplitMode, typer.Option("--split-mode", metavar="|".join(SplitMode), help="What is divided over several devices.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override-tensor", metavar="PATTERN=WHERE", help="Tensors elsewhere, on CPU or a device; may be repeated."
    ),
]
Projector = Annotated[
    str | None, typer.Option(metavar="FILE|URL", help="A projector for images or sound.", show_default=False)
]
Adapters = Annotated[
    list[str] | None, typer.Option("--lora", metavar="FILE|URL", help="A LoRA adapter; may be repeated.")
]
DraftModel = Annotated[
    str | None, typer.Option(metavar="FILE|URL", help="A draft model, as llama-server's -md.", show_default=False)
]
Mtp = Annotated[bool, typer.Option("--mtp", help="The model's own head drafts (--spec-type draft-mtp).")]
DraftTokens = Annotated[
    int, typer.Option("--draft-tokens", min=1, max=MOST_SLOTS, metavar="N", help="Tokens that are drafted at once.")
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


DIVIDED: dict[SplitMode, Literal["layer", "row", "tensor"]] = {
    SplitMode.NONE: "layer",
    SplitMode.LAYER: "layer",
    SplitMode.ROW: "row",
    SplitMode.TENSOR: "tensor",
}


def shares_of(text: str | None, mode: SplitMode) -> tuple[float, ...]:
    """Read -ts: numbers with commas or slashes between them. Raises Problem."""
    if text is None or mode is SplitMode.NONE:
        return ()
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError as error:
        raise Problem(f"--tensor-split {text}: give a number for each device, like 3,1", 2) from error


def overrides_of(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Read -ot: PATTERN=WHERE, several with commas between them. Raises Problem."""
    pairs = [part.partition("=") for text in texts or () for part in text.split(",")]
    if any(not pattern or not where for pattern, _, where in pairs):
        raise Problem("--override-tensor: give PATTERN=WHERE, like 'exps=CPU'", 2)
    return tuple((pattern, where) for pattern, _, where in pairs)


def per_second(gigabytes: float | None) -> int | None:
    """Give bytes per second."""
    return None if gigabytes is None else int(gigabytes * 10**9)
