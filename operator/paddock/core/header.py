"""The header of any GGUF file to a summary: of a model, or of what serves beside one, a projector or an adapter.

The summary of a companion is that of a model with `companion` set and without what is about models, so that whoever
reads headers need not know the difference.
"""

from collections.abc import Sequence
from typing import Final

from paddock.api.report import CompanionSummary, HeaderSummary, TensorGroup
from paddock.core.gguf import GgufError, GgufMetadata
from paddock.core.summary import INPUT_PREFIXES, Loaded, sizes_of, summarize

_MOST_NUMBERS: Final = 256
"""Numbers of a projector that a summary holds."""
_MOST_TENSORS: Final = 4096
"""Names and shapes of an adapter that a summary holds; adapters of the largest models have some dozens."""
_NO_MODEL: Final = TensorGroup(bytes=0, count=0)


def summary_of(parts: Sequence[GgufMetadata]) -> HeaderSummary:
    """Summarize a model, a projector or an adapter; raises GgufError."""
    values = parts[0].values if parts else {}
    kind, architecture = values.get("general.type"), values.get("general.architecture")
    if architecture == "clip" or kind == "mmproj":
        return _bare(parts, projector_of(parts))
    if kind == "adapter" and values.get("adapter.type") == "lora":
        return _bare(parts, _adapter(parts))
    return summarize(parts)


def _bare(parts: Sequence[GgufMetadata], companion: CompanionSummary) -> HeaderSummary:
    architecture = parts[0].values.get("general.architecture")
    named = parts[0].values.get("general.license")
    return HeaderSummary(
        architecture=architecture if isinstance(architecture, str) else "",
        license=named if isinstance(named, str) else None,
        file_bytes=sum(part.file_bytes for part in parts),
        parameters=sum(tensor.elements for part in parts for tensor in part.tensors),
        files=len(parts),
        block_count=0,
        embedding_length=0,
        key_length=0,
        value_length=0,
        input_tensors=_NO_MODEL,
        layer_tensors=_NO_MODEL,
        output_tensors=_NO_MODEL,
        companion=companion,
    )


def _adapter(parts: Sequence[GgufMetadata]) -> CompanionSummary:
    tensors = [one for one in sizes_of(parts) if base_of(one.name) != one.name]
    outside = [one for one in tensors if one.name.startswith(INPUT_PREFIXES)]
    inside = [one for one in tensors if not one.name.startswith(INPUT_PREFIXES)]
    ends: dict[str, dict[str, int]] = {}
    for one in tensors:
        name = base_of(one.name)
        if len(one.shape) > 1:
            first = one.name.endswith(".lora_a")
            ends.setdefault(name, {})["in" if first else "out"] = one.shape[0 if first else 1]
    shapes: dict[str, list[list[int]]] = {}
    for name, sides in ends.items():
        shape = [sides.get("in", 0), sides.get("out", 0)]
        known = shapes.setdefault(layerless(name), [])
        if shape not in known:
            known.append(shape)
    if not tensors or len(shapes) > _MOST_TENSORS:
        raise GgufError("ModelUnsupported", f"the adapter changes {len(shapes)} kinds of tensors")
    return CompanionSummary(
        kind="Adapter",
        device=grouped(inside),
        host=grouped(outside),
        widest=max(size for one in tensors for size in (*one.shape, 0)),
        adapts=shapes,
    )


def base_of(name: str) -> str:
    """Give the name of the tensor that one of an adapter belongs to; its own name where it belongs to none."""
    return name.removesuffix(".lora_a").removesuffix(".lora_b")


def layerless(name: str) -> str:
    """Give a tensor's name without its layer."""
    parts = name.split(".", 2)
    return parts[2] if parts[0] == "blk" and len(parts) > 2 and parts[1].isdecimal() else name  # noqa: PLR2004


def projector_of(parts: Sequence[GgufMetadata]) -> CompanionSummary:
    """Summarize a projector."""
    values = parts[0].values
    numbers = {
        key.removeprefix("clip."): min(max(value, 0), 2**20)
        for key, value in values.items()
        if key.startswith("clip.") and type(value) is int
    }
    kinds = {values.get(f"clip.{where}projector_type") for where in ("", "vision.")}
    return CompanionSummary(
        kind="Projector",
        device=grouped(sizes_of(parts)),
        host=grouped(()),
        numbers=dict(sorted(numbers.items())[:_MOST_NUMBERS]),
        projectors=sorted(one[:64] for one in kinds if isinstance(one, str)),
    )


def grouped(tensors: Sequence[Loaded]) -> TensorGroup:
    """Add up tensors."""
    return TensorGroup(
        bytes=sum(one.bytes for one in tensors),
        count=len(tensors),
        padded=sum(max(one.padded, one.bytes) for one in tensors),
    )
