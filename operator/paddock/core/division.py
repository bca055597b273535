"""What a model needs on each of several devices, and where tensors are put elsewhere by name.

Weights and cache follow llama.cpp's own division (build 11434); where layers are divided they add up to those of one
device. Compute buffers of divided layers are upper bounds: each device is taken to compute the largest step of the
whole graph. Where tensors are divided each device has the buffer of the whole graph, and room for the others' sums.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from paddock.api.report import HeaderSummary
from paddock.core.architectures import LOOPED, WITHOUT_TENSOR_SPLIT
from paddock.core.beside import Beside
from paddock.core.cache import LayerCache, layer_caches, states_rolled_back
from paddock.core.compute import bounded_device, bounded_host, copied_cache
from paddock.core.estimate import PADDING, Addend, MemoryEstimate, Options, Source, added_up, device_layers, estimate
from paddock.core.geometry import Geometry, per_layer, widths
from paddock.core.ggml import type_called, type_numbered
from paddock.core.gguf import GgufMetadata
from paddock.core.homes import HOST, homes
from paddock.core.overhead import CONTEXT, TENSOR_PADDING, UNKNOWN_CONTEXT, slack
from paddock.core.overriding import DivisionError, Overrides
from paddock.core.quantity import round_up
from paddock.core.slices import Slices
from paddock.core.summary import EVERY, INPUT, Loaded, loaded

__all__ = ["DivisionError", "Estimator"]

MOST_DEVICES: Final = 16
"""LLAMA_MAX_DEVICES."""
PIPELINE: Final = 4
"""Copies of a graph's inputs while several devices work on batches one after the other (GGML_SCHED_MAX_COPIES)."""
ROW_STEP: Final = 128
"""Rows to which a share of a matrix is rounded (ggml-sycl.cpp, get_row_rounding; the largest)."""
_F32: Final = 4
_STATE: Final = 3
"""Times the bound of a graph with recurrent state whose layers are on several devices."""
_ALIGNMENT: Final = 32
_PAIR: Final = ("cache_k", "cache_v")
_STATES: Final = ("cache_r", "cache_s")
_PADDED: Final = frozenset({"cuda", "hip", "sycl"})


class Estimator:
    """Estimates one model with any options, on one device or several."""

    def __init__(
        self,
        parts: Sequence[GgufMetadata],
        summary: HeaderSummary,
        beside: Beside = Beside(),  # noqa: B008 frozen
    ) -> None:
        self.parts, self.summary, self.beside = parts, summary, beside

    @cached_property
    def tensors(self) -> list[Loaded]:
        """Every tensor that is loaded."""
        return loaded(self.parts)

    def __call__(self, options: Options) -> MemoryEstimate:
        """Estimate what one server needs; raises DivisionError, and GgufError where a file beside is wrong."""
        if self.beside.adapters and options.split_mode == "tensor" and len(options.shares) > 1:
            raise DivisionError("llama.cpp b11434 cannot compute with adapters where tensors are divided; take layers")
        found = self.model(options)
        if self.beside == Beside() and not options.mtp:
            return found
        return added_up((*found.addends, *self.beside.addends(self.summary, options, self.tensors)))

    def model(self, options: Options) -> MemoryEstimate:
        """Estimate the model alone."""
        if not options.overrides and (len(options.shares) <= 1 or options.gpu_layers == 0):
            return estimate(self.summary, options)  # Nothing is divided.
        return _Divided(self.tensors, self.summary, options).estimate()


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes of one tensor in one place."""

    place: int
    bytes: int
    padding: int
    source: Source


class _Divided:
    """One model over several places."""

    def __init__(self, tensors: list[Loaded], summary: HeaderSummary, options: Options) -> None:
        self.tensors, self.summary, self.options = tensors, summary, options
        self.count = max(len(options.shares), 1)
        if self.count > MOST_DEVICES:
            raise DivisionError(f"llama.cpp knows at most {MOST_DEVICES} devices")
        if any(share < 0 for share in options.shares) or (options.shares and not sum(options.shares)):
            raise DivisionError("shares are numbers from 0 on, and not all 0")
        mode = options.split_mode
        if self.count > 1 and mode == "row" and options.backend != "sycl":
            raise DivisionError("of build 11434 only SYCL divides by rows; take layers, or -sm tensor")
        if self.count > 1 and mode == "tensor" and summary.architecture in WITHOUT_TENSOR_SPLIT:
            raise DivisionError(f"llama.cpp does not divide the tensors of {summary.architecture} models")
        if self.count > 1 and mode == "tensor" and options.flash_attention == "off":
            raise DivisionError("-sm tensor needs FlashAttention")
        self.geometry = Geometry.of(summary, options)
        self.on_device = device_layers(summary, options)
        self.homes = homes(summary.block_count, self.on_device, options.shares)
        self.within = mode != "layer" and self.count > 1
        self.slices = Slices(summary, tensors, options.shares) if self.within and mode == "tensor" else None
        self.overrides = Overrides(options)

    def estimate(self) -> MemoryEstimate:
        """Add up all places."""
        weights = self._weights()
        parts = self._weight_parts(weights) + self._cache_parts() + self._compute_parts(weights)
        for number in range(self.count):
            own = sum(one.bytes for one in parts if one.place == "device" and one.device == number)
            if own:
                backend = self.options.backend
                learned = CONTEXT.get(backend, UNKNOWN_CONTEXT) + slack(backend, own)
                parts.append(Addend("driver, kernels, pools", "device", "overhead", learned, "learned", number))
        plain = estimate(self.summary, replace(self.options, shares=(), overrides=()))
        parts += [one for one in plain.addends if one.place == "host" and one.kind == "overhead"]
        return added_up(parts)

    # -- weights ---------------------------------------------------------------------------------------------------

    def _weights(self) -> list[_Weights]:
        """Give where each tensor is; two that share a name and a place are loaded once."""
        found: dict[tuple[str, int], _Weights] = {}
        for tensor in self.tensors:
            target = self.overrides.of(tensor)
            for one in self._placed(tensor) if target is None else [self._whole(tensor, target)]:
                found.setdefault((tensor.name, one.place), one)
        return list(found.values())

    def _placed(self, tensor: Loaded) -> Iterable[_Weights]:
        if tensor.layer == INPUT:
            return [self._whole(tensor, HOST)]
        if tensor.layer == EVERY:
            used = set(self.homes[:-1])
            if self.slices is not None and used != {HOST}:
                used |= set(range(self.count))
            return [self._whole(tensor, place) for place in sorted(used)]
        home = self.homes[tensor.layer]
        if home == HOST or not self.within:
            return [self._whole(tensor, home)]
        if self.slices is not None:
            shapes = self.slices.of(tensor.name, tensor.shape, tensor.layer)
            return [self._slice(tensor, shape, place) for place, shape in enumerate(shapes)]
        if len(tensor.shape) < 2:  # noqa: PLR2004 a matrix
            return [self._whole(tensor, home)]
        return [self._rows(tensor, place) for place in range(self.count)]

    def _whole(self, tensor: Loaded, place: int) -> _Weights:
        return _Weights(place, tensor.bytes, self._padding(tensor) if place != HOST else 0, "exact")

    def _slice(self, tensor: Loaded, shape: tuple[int, ...], place: int) -> _Weights:
        """Give one device's part of a tensor, or all of it where that is not known."""
        element = type_numbered(tensor.type)
        if element is None or self.slices is None or not self.slices.known():
            return replace(self._whole(tensor, place), source="bound")
        size = round_up(element.row(shape[0]) * math.prod(shape[1:]), _ALIGNMENT)
        return _Weights(place, size, 0 if self.options.backend == "generic" else TENSOR_PADDING, "exact")

    def _rows(self, tensor: Loaded, place: int) -> _Weights:
        """Give a bound of one device's rows: its share, and a step of rows."""
        share = self.options.shares[place] / sum(self.options.shares)
        most = min(1.0, share + ROW_STEP / max(tensor.shape[1], 1))
        return _Weights(place, min(tensor.bytes, int(tensor.bytes * most) + 1), self._padding(tensor), "bound")

    def _padding(self, tensor: Loaded) -> int:
        if self.options.backend == "generic":
            return 0
        return max(tensor.padded - tensor.bytes, 0) if self.options.backend in _PADDED else TENSOR_PADDING

    def _weight_parts(self, weights: list[_Weights]) -> list[Addend]:
        parts = []
        for place in (*range(self.count), HOST):
            mine = [one for one in weights if one.place == place]
            source: Source = "bound" if any(one.source == "bound" for one in mine) else "exact"
            size, padding = sum(one.bytes for one in mine), sum(one.padding for one in mine)
            if place == HOST:
                parts.append(Addend("weights", "host", "weights", size, source))
            else:
                parts.append(Addend("weights", "device", "weights", size, source, place))
                parts.append(Addend(PADDING, "device", "overhead", padding, "bound", place))
        return parts

    # -- cache -----------------------------------------------------------------------------------------------------

    def _cache_parts(self) -> list[Addend]:
        plain = estimate(self.summary, replace(self.options, shares=(), overrides=(), cpu_moe=0, gpu_layers=None))
        exact = all(one.source == "exact" for one in plain.addends if one.kind == "kvCache" and one.place == "device")
        caches = list(zip(layer_caches(self.summary, self.options, self.geometry), self.homes, strict=False))
        parts = []
        for place in (*range(self.count), HOST):
            size, whole = self._cache_of(caches, place)
            source: Source = "exact" if exact and whole else "bound"
            if place == HOST:
                parts.append(Addend("keys, values and state", "host", "kvCache", size, source))
            else:
                parts.append(Addend("keys, values and state", "device", "kvCache", size, source, place))
        return parts

    def _cache_of(self, caches: list[tuple[LayerCache, int]], place: int) -> tuple[int, bool]:
        """Give the cache in a place, and whether that is no bound."""
        if place == HOST or self.slices is None:
            return sum(cache.total for cache, home in caches if home == place), True
        parts = [self._cache_slice(layer, cache, place) for layer, (cache, home) in enumerate(caches) if home != HOST]
        return sum(parts), self.slices.known()

    def _cache_slice(self, layer: int, cache: LayerCache, place: int) -> int:
        """Give one device's part of a layer's cache; an index of keys is on each, and what is not known."""
        if self.slices is None or not self.slices.known() or self.summary.key_length_mla is not None:
            return cache.total
        pair = self._pair_slice(self.slices, layer, cache, place)
        return pair + cache.index + self._state_slice(self.slices, layer, cache.state, place)

    def _pair_slice(self, slices: Slices, layer: int, cache: LayerCache, place: int) -> int:
        heads = per_layer(self.summary.head_count_kv, self.summary.block_count)[layer]
        sizes = [width * heads for width in widths(self.summary, windowed=cache.windowed)]
        types = (type_called(self.options.cache_type_k), type_called(self.options.cache_type_v))
        rows = [element.row(size) for element, size in zip(types, sizes, strict=True)]
        if not cache.keys_and_values or not all(rows):
            return cache.keys_and_values
        own = [slices.elements(name, size, layer)[place] for name, size in zip(_PAIR, sizes, strict=True)]
        tokens = cache.keys_and_values // sum(rows)
        return tokens * sum(element.row(size) for element, size in zip(types, own, strict=True))

    def _state_slice(self, slices: Slices, layer: int, size: int, place: int) -> int:
        shapes = slices.states()
        if not size or shapes is None:
            return size
        slots = self.geometry.slots * (1 + states_rolled_back(self.summary, self.options))
        own = [slices.elements(name, one, layer)[place] for name, one in zip(_STATES, shapes, strict=True)]
        rest = size - slots * sum(round_up(_F32 * one, _ALIGNMENT) for one in shapes)  # it is on every device
        return max(rest, 0) + sum(round_up(_F32 * one * slots, _ALIGNMENT) for one in own)

    # -- compute ---------------------------------------------------------------------------------------------------

    def _compute_parts(self, weights: list[_Weights]) -> list[Addend]:
        if self.slices is not None and not self.overrides:
            return self._compute_within()
        summary, options, geometry = self.summary, self.options, self.geometry
        graph = bounded_device(summary, options, geometry) * (_STATE if summary.recurrent else 1)
        inputs = bounded_host(summary, options, geometry)
        crossing = (4 if options.overrides else 2) * _F32 * summary.embedding_length * geometry.tokens
        crossing *= summary.block_count if summary.architecture in LOOPED else 1
        used = sorted({one.place for one in weights if one.place != HOST and one.bytes})
        on_host = HOST in self.homes or bool(self.overrides) or self.options.cpu_moe > 0
        copies = PIPELINE if self.count > 1 and not on_host and options.split_mode == "layer" else 1
        parts = []
        for number in used:
            size = graph + crossing + (copies - 1) * (inputs + crossing)
            parts.append(Addend("compute buffer", "device", "compute", size, "bound", number))
            copy = copied_cache(summary, options, geometry)
            parts.append(Addend("16-bit copy of a quantized cache", "device", "compute", copy, "bound", number))
            if on_host and options.backend != "generic":
                parts.append(Addend("host weights in use", "device", "compute", self._lent(), "bound", number))
        host = inputs * copies + (graph + crossing if on_host else 0)
        return [*parts, Addend("inputs of the graph", "host", "compute", host, "bound")]

    def _compute_within(self) -> list[Addend]:
        """Give each device the buffer of the whole graph (ggml-backend-meta.cpp:1697), and room for others' sums."""
        alone = replace(self.options, shares=(), split_mode="layer", flash_attention="on")
        found = [one for one in estimate(self.summary, alone).addends if one.kind == "compute"]
        if self.summary.recurrent:  # some of these graphs are smaller when they are divided
            found = [replace(one, source="bound") for one in found]
        steps = math.ceil(math.log2(self.count))
        sums = steps * _F32 * self.summary.embedding_length * self.geometry.tokens * max(self.summary.experts_used, 1)
        parts = [one for one in found if one.place == "host"]
        for number in range(self.count):
            parts += [replace(one, device=number) for one in found if one.place == "device"]
            parts.append(Addend("sums over all devices", "device", "compute", sums, "bound", number))
        return parts

    def _lent(self) -> int:
        """Bytes of the host's weights of one layer, which a device copies to compute a prompt (op_offload)."""
        sizes: dict[int, int] = {}
        for tensor in self.tensors:
            if tensor.layer < 0:
                continue
            moved = self.overrides.of(tensor)
            if (self.homes[tensor.layer] if moved is None else moved) == HOST:
                sizes[tensor.layer] = sizes.get(tensor.layer, 0) + tensor.padded
        return max(sizes.values(), default=0)
