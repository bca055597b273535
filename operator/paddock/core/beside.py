"""What a server holds beside its model: a projector for images or sound, adapters, a draft model, an MTP head.

Weights are exact. A draft model is estimated like any other. What a projector or an MTP head computes with is a bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paddock.api.report import CompanionSummary, HeaderSummary, TensorGroup
from paddock.core.compute import bounded_device, bounded_host
from paddock.core.estimate import PADDING, Addend, Options, Place, estimate
from paddock.core.geometry import Geometry, widths
from paddock.core.ggml import type_called
from paddock.core.gguf import GgufError, GgufMetadata
from paddock.core.header import base_of, grouped, projector_of
from paddock.core.homes import HOST
from paddock.core.overhead import TENSOR_PADDING
from paddock.core.overriding import places
from paddock.core.summary import Loaded, sizes_of

DRAFTED: Final = 3
"""Tokens that are drafted at once (--spec-draft-n-max; common/common.h:329)."""
_F32: Final = 4
_DYNAMIC_PATCHES: Final = 4096 * 4
"""Patches of the largest image of projectors that take images of any size: 4096 tokens of 2 x 2 patches (clip.cpp)."""
_BATCH_TOKENS: Final = 1024
"""Tokens of images that are computed together (mtmd.h, batch_max_tokens)."""
_FIXED: Final = frozenset({"mlp", "mlp_norm", "ldp", "ldpv2", "gemma3", "idefics3", "internvl", "adapter", "janus_pro"})
"""Projectors whose images all have the size that the file says."""
_FLASH_HEADS: Final = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
_AUDIO_FRAMES: Final = 3000
"""Frames of thirty seconds of sound."""
_PADDED: Final = frozenset({"cuda", "hip", "sycl"})


@dataclass(frozen=True)
class Draft:
    """A draft model."""

    parts: Sequence[GgufMetadata]
    summary: HeaderSummary


@dataclass(frozen=True)
class Beside:
    """What is asked for."""

    projector: GgufMetadata | None = None
    adapters: tuple[GgufMetadata, ...] = ()
    draft: Draft | None = None

    def addends(self, summary: HeaderSummary, options: Options, tensors: Sequence[Loaded]) -> list[Addend]:
        """Give the parts; tensors are those of the model. Raises GgufError where a file is not what it should be."""
        found = [] if self.projector is None else projector(self.projector, options)
        for number, one in enumerate(self.adapters, 1):
            name = "adapter" if len(self.adapters) == 1 else f"adapter {number}"
            found += adapter(one, name, options, tensors)
        if self.draft is not None:
            found += draft(self.draft.summary, options, Geometry.of(summary, options))
        if options.mtp:
            found += mtp(summary, options)
        return found


def _weights(what: str, sizes: TensorGroup, options: Options, place: Place, device: int = 0) -> list[Addend]:
    """Give the tensors of one file in one place, with what the backend adds."""
    parts = [Addend(what, place, "weights", sizes.bytes, "exact", device)]
    if place == "device" and options.backend != "generic":
        known = options.backend in _PADDED
        more = max(sizes.padded - sizes.bytes, 0) if known else TENSOR_PADDING * sizes.count
        parts.append(Addend(f"{PADDING} of the {what}", place, "overhead", more, "exact" if known else "bound", device))
    return parts


def projector(metadata: GgufMetadata, options: Options) -> list[Addend]:
    """Give a projector's weights, and a bound of what the largest image, or half a minute of sound, takes."""
    kind, architecture = metadata.values.get("general.type"), metadata.values.get("general.architecture")
    if architecture != "clip" and kind != "mmproj":
        raise GgufError("ModelUnsupported", f"the file holds no projector (architecture {architecture})")
    return encoders(projector_of([metadata]), options)


def encoders(summary: CompanionSummary, options: Options) -> list[Addend]:
    """Give what a projector needs: see `projector`."""
    place: Place = "host" if options.gpu_layers == 0 else "device"
    flash = options.flash_attention != "off"
    compute = max(_image(summary, flash=flash), _sound(summary, flash=flash))
    return [
        *_weights("projector", summary.device, options, place),
        Addend("computing an image or sound", place, "compute", compute, "bound"),
        Addend("inputs of an image or sound", "host", "compute", compute // 4, "bound"),
    ]


class _Numbers:
    """Whole numbers of one encoder of a projector."""

    def __init__(self, summary: CompanionSummary, encoder: str) -> None:
        self._values, self._prefix = summary.numbers, f"{encoder}."

    def __getitem__(self, key: str) -> int:
        return self._values.get(self._prefix + key, 0)


def _image(summary: CompanionSummary, *, flash: bool) -> int:
    numbers = _Numbers(summary, "vision")
    if not numbers["embedding_length"]:
        return 0
    patch = numbers["patch_size"] or 14
    patches = (numbers["image_size"] // patch) ** 2 + 1
    if not _FIXED.intersection(summary.projectors):
        patches = max(patches, _DYNAMIC_PATCHES)
    # A small image's tokens fit several times into a batch; a projector merges at least 2 x 2 patches, or none.
    patches *= max(1, min(_BATCH_TOKENS // max(patches // 16, 1), 4))
    return _graph(numbers, patches, pixels=3 * patch * patch, flash=flash)


def _sound(summary: CompanionSummary, *, flash: bool) -> int:
    numbers = _Numbers(summary, "audio")
    if not numbers["embedding_length"]:
        return 0
    return _graph(numbers, _AUDIO_FRAMES, pixels=3 * (numbers["num_mel_bins"] or 128), flash=flash)


def _graph(numbers: _Numbers, tokens: int, *, pixels: int, flash: bool) -> int:
    """Bound the buffer of an encoder: activations, the widest step, patches, and scores without FlashAttention."""
    width, heads = numbers["embedding_length"], max(numbers["attention.head_count"], 1)
    step = 8 * width + 3 * max(numbers["feed_forward_length"], numbers["projection_dim"]) + 2 * pixels
    scores = 0 if flash and width // heads in _FLASH_HEADS else 2 * heads * tokens
    return _F32 * tokens * (step + scores)


def adapter(metadata: GgufMetadata, name: str, options: Options, tensors: Sequence[Loaded]) -> list[Addend]:
    """Give an adapter's weights, each beside the tensor that it adapts (src/llama-adapter.cpp:332-360)."""
    if metadata.values.get("general.type") != "adapter" or metadata.values.get("adapter.type") != "lora":
        raise GgufError("ModelUnsupported", "the file is no LoRA adapter")
    where = places(tensors, options)
    groups: dict[int, list[Loaded]] = {}
    widest = 0
    for one in sizes_of([metadata]):
        base = base_of(one.name)
        if base == one.name:
            continue
        if base not in where:
            raise GgufError("ModelUnsupported", f"the adapter is for another model: this one has no {base}")
        groups.setdefault(where[base], []).append(one)
        widest = max(widest, *one.shape) if one.shape else widest
    return _adapted(name, {place: grouped(own) for place, own in sorted(groups.items())}, widest, options)


def whole_adapter(summary: CompanionSummary, name: str, options: Options) -> list[Addend]:
    """Give the same for a model that is whole on a device, or on the CPU."""
    if options.gpu_layers == 0:
        both = (summary.device, summary.host)
        every = TensorGroup(bytes=sum(one.bytes for one in both), count=sum(one.count for one in both))
        return _adapted(name, {HOST: every}, summary.widest, options)
    return _adapted(name, {0: summary.device, HOST: summary.host}, summary.widest, options)


def _adapted(name: str, groups: Mapping[int, TensorGroup], widest: int, options: Options) -> list[Addend]:
    step = 3 * _F32 * widest * options.ubatch
    groups = {place: sizes for place, sizes in groups.items() if sizes.count}
    devices = [place for place in groups if place != HOST]
    parts = []
    for place in devices:
        parts += _weights(name, groups[place], options, "device", place)
    if HOST in groups:
        parts += _weights(name, groups[HOST], options, "host")
    computing = f"computing with the {name}"
    parts += [Addend(computing, "device", "compute", step, "bound", place) for place in devices]
    if HOST in groups or not devices:
        parts.append(Addend(computing, "host", "compute", step, "bound"))
    return parts


def draft(summary: HeaderSummary, options: Options, geometry: Geometry) -> list[Addend]:
    """Give what a draft model needs: as much context as its target, a cache of 16 bits, one output for each slot."""
    like = replace(
        options,
        context=geometry.context,
        cache_type_k="f16",
        cache_type_v="f16",
        embeddings=False,
        overrides=(),
        shares=(),
        cpu_moe=0,
        gpu_layers=None if options.gpu_layers != 0 else 0,
        drafted=0,
        mtp=False,
    )
    found = [one for one in estimate(summary, like).addends if one.source != "learned"]
    return [replace(one, name=f"draft model: {one.name}") for one in found]


def mtp(summary: HeaderSummary, options: Options) -> list[Addend]:
    """Give what the head needs that predicts further tokens: its layers, their cache, and a bound of its graph."""
    if not summary.predicting_layers:
        raise GgufError("ModelUnsupported", "the model has no layers that predict further tokens")
    geometry = Geometry.of(summary, options)
    place: Place = "host" if options.gpu_layers == 0 else "device"
    cache = summary.predicting_layers * _predicting_cache(summary) * geometry.cells * geometry.streams
    return [
        Addend("MTP head", place, "weights", summary.predicting_bytes, "exact"),
        Addend("MTP head: keys and values", place, "kvCache", cache, "bound"),
        Addend("MTP head: compute buffer", place, "compute", bounded_device(summary, options, geometry), "bound"),
        Addend("MTP head: inputs of the graph", "host", "compute", bounded_host(summary, options, geometry), "bound"),
    ]


def _predicting_cache(summary: HeaderSummary) -> int:
    """Bytes of the cache of one token in such a layer, which is of the kind of the widest other one."""
    heads = max((*summary.head_count_kv, 1))
    element = type_called("f16")
    return max(sum(element.row(width * heads) for width in widths(summary, windowed=flag)) for flag in (False, True))
