"""Estimates the memory that one server needs, from the summary of its header and the server's options.

Every addend stands for itself, with its source: `exact` follows llama.cpp's own arithmetic (build 11434) and equals
its allocation; `formula` is the allocator replayed over a graph of llama.cpp's, and equals it within a hundredth;
`bound` is never less than it; `learned` is a planning value for what no formula knows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from paddock.api.report import HeaderSummary
from paddock.core.cache import LayerCache, layer_caches, states_rolled_back
from paddock.core.compute import (
    bounded_device,
    bounded_host,
    cast_cache,
    copied_cache,
    copied_values,
    copied_weights,
    logits,
    pooling_bound,
)
from paddock.core.geometry import Geometry, Options, pooling_of
from paddock.core.graphs import ComputeSizes, compute_sizes
from paddock.core.offload import Places, flash_stays, scheduled_sizes
from paddock.core.overhead import (
    CONTEXT,
    DEVICE_ALIGNMENT,
    HOST_PROCESS,
    TENSOR_PADDING,
    UNKNOWN_ALIGNMENT,
    UNKNOWN_CONTEXT,
    slack,
)
from paddock.core.scheduler import DEVICE, HOST
from paddock.core.templates import OPERATIONS, templates

__all__ = ["BUILD", "Addend", "Kind", "MemoryEstimate", "Options", "Place", "Source", "estimate"]

BUILD: Final = 11434
"""llama.cpp's build that the estimate is of."""
Place = Literal["device", "host"]
Kind = Literal["weights", "kvCache", "compute", "overhead"]
"""Recurrent state counts as kvCache; logits, the process and what is learned as overhead."""
Source = Literal["exact", "formula", "bound", "learned"]

PADDING: Final = "alignment of tensors"
"""Name of what a backend's allocator adds to tensors."""

_MOST: Final = 2**58
_UNCERTAIN_CACHE: Final = frozenset({"deepseek4"})
"""Compressed caches without a closed form."""
_UNCERTAIN_SPLIT: Final = frozenset({"kimi-k3"})
"""Graphs whose last part uses what layers long before it have left, so that more may be copied than was recorded."""
_SPLIT_STATE: Final = 3
"""Times the bound of a graph with recurrent state whose layers are split over device and CPU."""
_SPLIT_EXPERTS: Final = 2
"""The same of a graph with experts: what they give is copied before it is added up."""
ROOM: Final = 10
"""A part of this number is added where the replayed graph may differ from the one in question."""
_FUSING: Final = frozenset({"vulkan", "metal", "other", "unknown"})
"""Backends that keep tensors longer, or compute in another order, to fuse operations (graph_optimize)."""
_FUSING_EXPERTS: Final = frozenset({"cuda", "hip"})
"""The same of graphs with experts only (ggml-cuda.cu:4604)."""
_PADDED: Final = frozenset({"cuda", "hip", "sycl"})
"""Backends whose padding of tensors the summary has summed up."""


@dataclass(frozen=True, slots=True)
class Addend:
    """One part of the need."""

    name: str
    """For people, in a few words."""
    place: Place
    kind: Kind
    bytes: int
    source: Source
    device: int = 0
    """Which of several devices, in the order of -ts."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The parts in a fixed order; parts of 0 bytes are left out."""

    addends: tuple[Addend, ...]
    confidence: Literal["exact", "bound"]
    """exact, or bound when any of weights, cache and compute is an upper bound."""

    def sum(self, place: Place, kind: Kind, device: int | None = None) -> int:
        """Add up the parts of a kind in a place, in bytes; device is one of several."""
        mine = (one for one in self.addends if one.place == place and one.kind == kind)
        return sum(one.bytes for one in mine if device is None or one.device == device)

    @property
    def devices(self) -> tuple[int, ...]:
        """All that is needed on each device, overhead included."""
        count = 1 + max((one.device for one in self.addends), default=0)
        mine = [one for one in self.addends if one.place == "device"]
        return tuple(sum(one.bytes for one in mine if one.device == number) for number in range(count))

    @property
    def device_total(self) -> int:
        """All that is needed on the device, or on all of them together, overhead included."""
        return sum(one.bytes for one in self.addends if one.place == "device")

    @property
    def host_total(self) -> int:
        """All that is needed in host memory, overhead included."""
        return sum(one.bytes for one in self.addends if one.place == "host")

    @property
    def overhead(self) -> int:
        """What is no allocation of the model's, in both places: driver, padding, slack, logits, the process."""
        return self.sum("device", "overhead") + self.sum("host", "overhead")


def estimate(summary: HeaderSummary, options: Options, *, checkpoints: int = 0) -> MemoryEstimate:
    """Estimate what one server needs.

    checkpoints is the server's --ctx-checkpoints: so many copies of what a slot cannot recompute may be kept in host
    memory.
    """
    geometry = Geometry.of(summary, options)
    on_device = device_layers(summary, options)
    parts = [
        *_weights(summary, options, on_device),
        *_caches(summary, options, geometry, on_device, checkpoints),
        *_compute(summary, options, geometry, on_device),
    ]
    if on_device:
        device = sum(part.bytes for part in parts if part.place == "device" and part.kind != "overhead")
        learned = CONTEXT.get(options.backend, UNKNOWN_CONTEXT) + slack(options.backend, device)
        parts.append(Addend("driver, kernels, pools", "device", "overhead", learned, "learned"))
    parts.append(Addend("logits of the answers", "host", "overhead", logits(summary, geometry), "exact"))
    parts.append(Addend("server process", "host", "overhead", HOST_PROCESS, "learned"))
    return added_up(parts)


def added_up(parts: Iterable[Addend]) -> MemoryEstimate:
    """Put parts together; those of 0 bytes are left out."""
    kept = tuple(_believed(part) for part in parts if part.bytes > 0)
    bound = any(part.source == "bound" and part.kind != "overhead" for part in kept)
    return MemoryEstimate(kept, "bound" if bound else "exact")


def device_layers(summary: HeaderSummary, options: Options) -> int:
    """Give how many layers are on the device, the output layer counted as one (src/llama-model.cpp:1591)."""
    every = summary.block_count + 1
    return every if options.gpu_layers is None else min(max(options.gpu_layers, 0), every)


def _weights(summary: HeaderSummary, options: Options, on_device: int) -> list[Addend]:
    whole = on_device > summary.block_count
    layers, source = _last_layers(summary, on_device)
    device = layers + (summary.output_tensors.bytes if on_device else 0)  # it goes before any layer
    device -= summary.shared_bytes if on_device == 1 else 0  # which is with layers only
    host = summary.input_tensors.bytes + max(summary.layer_tensors.bytes - layers, 0)
    if source == "bound":
        host = summary.input_tensors.bytes + summary.layer_tensors.bytes
    if not on_device:
        host += summary.output_tensors.bytes  # a tied embedding is there twice where the CPU packs weights anew
        source = "bound" if summary.tied_bytes else source
    elif not whole:
        host += summary.shared_bytes
    moved = min(experts_on_host(summary, options, on_device), device)
    device, host = device - moved, host + (moved if source == "exact" else 0)
    alone = whole and not moved
    parts = [Addend("token embeddings" if alone else "weights", "host", "weights", host, source)]
    if device:
        parts.insert(0, Addend("weights", "device", "weights", device, source))
        parts += _padding(summary, options, whole=whole)
    return parts


def experts_on_host(summary: HeaderSummary, options: Options, on_device: int) -> int:
    """Bytes of experts that --n-cpu-moe keeps on the host although their layers are on the device."""
    count, sizes = summary.block_count, summary.expert_bytes
    if not sizes:
        return 0
    spread = sizes * count if len(sizes) == 1 else sizes
    return sum(spread[max(count + 1 - on_device, 0) : options.cpu_moe])


def _last_layers(summary: HeaderSummary, on_device: int) -> tuple[int, Source]:
    """Bytes of the last layers; an upper bound where the summary does not have them one by one."""
    sizes, count = summary.layer_bytes, summary.block_count
    if on_device == 0:
        return 0, "exact"
    if on_device > count:
        return summary.layer_tensors.bytes, "exact"
    if not sizes:
        return summary.layer_tensors.bytes, "bound"
    spread = sizes * count if len(sizes) == 1 else sizes
    return sum(spread[count + 1 - on_device :]), "exact"


def _padding(summary: HeaderSummary, options: Options, *, whole: bool) -> list[Addend]:
    """Give what the backend's allocator adds to the tensors."""
    groups = (summary.layer_tensors, summary.output_tensors)
    if options.backend == "generic":
        return []
    known_size = all(group.padded or not group.count for group in groups)
    if options.backend in _PADDED and known_size and whole:
        size = sum(group.padded - group.bytes for group in groups)
        return [Addend(PADDING, "device", "overhead", max(size, 0), "exact")]
    size = sum(group.count for group in groups) * TENSOR_PADDING
    return [Addend(PADDING, "device", "overhead", size, "bound")]


def _caches(
    summary: HeaderSummary, options: Options, geometry: Geometry, on_device: int, checkpoints: int
) -> list[Addend]:
    caches = layer_caches(summary, options, geometry)
    first = max(summary.block_count + 1 - on_device, 0)
    source: Source = "bound" if summary.architecture in _UNCERTAIN_CACHE else "exact"
    parts = []
    places: tuple[tuple[Place, list[LayerCache]], ...] = (("device", caches[first:]), ("host", caches[:first]))
    for place, layers in places:
        for name, size in _cache_sizes(layers):
            parts.append(Addend(name, place, "kvCache", size, source))
    kept = checkpoints * sum(one.state + (one.keys_and_values if one.windowed else 0) for one in caches)
    parts.append(Addend("checkpoints of slots", "host", "kvCache", kept, "bound"))
    return parts


def _cache_sizes(layers: list[LayerCache]) -> list[tuple[str, int]]:
    full = sum(one.keys_and_values for one in layers if not one.windowed)
    windowed = sum(one.keys_and_values for one in layers if one.windowed)
    index, state = sum(one.index for one in layers), sum(one.state for one in layers)
    names = ("keys and values", "keys and values of windowed layers", "index of keys", "recurrent state")
    return list(zip(names, (full, windowed, index, state), strict=True))


def _compute(summary: HeaderSummary, options: Options, geometry: Geometry, on_device: int) -> list[Addend]:
    places = layout(summary, options, on_device)
    rolled_back = states_rolled_back(summary, options)  # no graph of this kind was recorded
    sizes = None if rolled_back else _planned(summary, options, geometry, places)
    if sizes is not None:
        sizes = sizes._replace(sure=sizes.sure and not _alike(summary))
        return _replayed(summary, options, geometry, sizes, on_device)
    bound = bounded_device(summary, options, geometry)
    inputs = bounded_host(summary, options, geometry)
    bound += 2 * rolled_back * summary.recurrent_state_bytes * geometry.slots
    if not on_device:
        return [Addend("compute buffer", "host", "compute", bound + inputs, "bound")]
    if places.mixed:
        bound *= _SPLIT_STATE if summary.recurrent else _SPLIT_EXPERTS if summary.experts_used else 1
        inputs += bound
    return [
        Addend("compute buffer", "device", "compute", bound, "bound"),
        *_copy(summary, options, geometry),
        Addend("inputs of the graph", "host", "compute", inputs, "bound"),
    ]


def _alike(summary: HeaderSummary) -> bool:
    """Say whether an index of latent keys has as many heads as attention: results of both may then share memory."""
    if summary.graph is None or summary.key_length_mla is None:
        return False
    heads = summary.graph.numbers.get("attention.indexer.head_count", 0)
    return bool(heads) and heads in summary.head_count


def _planned(summary: HeaderSummary, options: Options, geometry: Geometry, places: Places) -> ComputeSizes | None:
    """Give what the allocator would take; how embeddings are pooled is a bound where that graph was not recorded."""
    sizes = _allocated(summary, options, geometry, places)
    if sizes is not None or not options.embeddings or pooling_of(summary, options) == "none":
        return sizes
    sizes = _allocated(summary, replace(options, pooling="none"), geometry, places)
    if sizes is None:
        return None
    pooled = pooling_bound(summary, geometry)
    return ComputeSizes(sizes.device + pooled, sizes.host + pooled, sure=False)


def _allocated(summary: HeaderSummary, options: Options, geometry: Geometry, places: Places) -> ComputeSizes | None:
    """Give what the allocator would take, with what is known to be added; None without a template."""
    flash = _keeps_flash(summary, options, places)
    own = options if flash else replace(options, flash_attention="given up")
    sizes = _sizes(summary, own, geometry, places)
    if sizes is None and not flash:  # the values are not laid out for doing without it, so a layer's are copied
        sizes = _sizes(summary, replace(options, flash_attention="off"), geometry, places)
        if sizes is not None:
            sizes = sizes._replace(device=sizes.device + copied_values(summary, geometry), sure=False)
    if sizes is not None:
        sizes = _with_casts(sizes, cast_cache(summary, options, geometry), places)
        sizes = sizes._replace(sure=sizes.sure and not (places.mixed and summary.architecture in _UNCERTAIN_SPLIT))
    if sizes is None or not places.mixed or options.backend == "generic":
        return sizes
    # such a GPU computes prompts for the host's layers too, with copies of their weights (offload_op)
    all_on_it = layout(summary, replace(options, cpu_moe=0), summary.block_count + 1)
    whole = _sizes(summary, options, geometry, all_on_it)
    if whole is None:
        return None
    return sizes._replace(device=max(whole.device, sizes.device) + copied_weights(summary), sure=False)


def _with_casts(sizes: ComputeSizes, cast: int, places: Places) -> ComputeSizes:
    """Add copies of the cache, which no graph was recorded with, wherever layers are."""
    if not cast:
        return sizes
    device, host = (cast if place in places.layers else 0 for place in (DEVICE, HOST))
    return ComputeSizes(sizes.device + device, sizes.host + host, sure=False)


def _sizes(summary: HeaderSummary, options: Options, geometry: Geometry, places: Places) -> ComputeSizes | None:
    """Replay the allocator: over its steps where that is enough, which takes a millisecond, else over the graph."""
    alignment = DEVICE_ALIGNMENT.get(options.backend, UNKNOWN_ALIGNMENT)
    planned = options.backend != "generic"
    if not places.mixed and (places.output == DEVICE or planned):
        sizes = compute_sizes(summary, options, geometry, templates(), alignment)
        if sizes is not None and places.output == HOST:  # no copies between the two, so never more than both
            sizes = sizes._replace(device=0, host=sizes.device + sizes.host, sure=False)
        if sizes is not None:
            return sizes
    return scheduled_sizes(summary, options, geometry, templates(OPERATIONS), places, alignment)


def layout(summary: HeaderSummary, options: Options, on_device: int) -> Places:
    """Say where the layers, their experts and the output are."""
    count = len(summary.graph.layers) if summary.graph is not None else summary.block_count
    first = summary.block_count + 1 - on_device
    layers = tuple(DEVICE if layer >= first else HOST for layer in range(count))
    experts = tuple(HOST if layer < options.cpu_moe else own for layer, own in enumerate(layers))
    return Places(layers, experts if summary.expert_bytes else layers, DEVICE if on_device else HOST)


def _keeps_flash(summary: HeaderSummary, options: Options, places: Places) -> bool:
    """Decide as llama.cpp does, which gives FlashAttention up after the cache was laid out for it."""
    if options.flash_attention != "auto" or options.quantized or not places.mixed:
        return True
    return flash_stays(summary, options, templates(OPERATIONS), places)


def _copy(summary: HeaderSummary, options: Options, geometry: Geometry) -> list[Addend]:
    size = copied_cache(summary, options, geometry)
    return [Addend("16-bit copy of a quantized cache", "device", "compute", size, "bound")]


def _replayed(
    summary: HeaderSummary, options: Options, geometry: Geometry, sizes: ComputeSizes, on_device: int
) -> list[Addend]:
    """Give the compute buffers by the replayed allocator, with room for what a graph or a backend may do otherwise."""
    if not on_device:
        return [_roomy("compute buffer", "host", sizes.host, exact=sizes.sure)]
    fused = options.backend in _FUSING or (options.backend in _FUSING_EXPERTS and bool(summary.experts_used))
    device = _roomy("compute buffer", "device", sizes.device, exact=sizes.sure and not fused)
    host = _roomy("inputs of the graph", "host", sizes.host, exact=sizes.sure)
    return [device, *_copy(summary, options, geometry), host]


def _roomy(name: str, place: Place, size: int, *, exact: bool) -> Addend:
    return Addend(name, place, "compute", size if exact else size + size // ROOM, "formula" if exact else "bound")


def _believed(part: Addend) -> Addend:
    """Cut what no machine has, so that sums stay within the API's 64 bits."""
    return part if part.bytes <= _MOST else replace(part, bytes=_MOST)
