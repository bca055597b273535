"""Key-value cache and recurrent state, layer by layer, as llama.cpp (build 11434) lays them out."""

from dataclasses import dataclass

from paddock.api.report import HeaderSummary
from paddock.core.architectures import ROLLED_BACK
from paddock.core.geometry import Geometry, Options, flash_attention, per_layer, widths
from paddock.core.ggml import GgmlElement, type_called


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Bytes of one layer for all slots."""

    keys_and_values: int
    index: int
    """Sparse attention: the index of its keys."""
    state: int
    """Recurrent state."""
    windowed: bool

    @property
    def total(self) -> int:
        """All of the layer."""
        return self.keys_and_values + self.index + self.state


def layer_caches(summary: HeaderSummary, options: Options, geometry: Geometry) -> list[LayerCache]:
    """Give the cache of every layer (src/llama-kv-cache.cpp:95-300, src/llama-memory-recurrent.cpp:57-125)."""
    count = summary.block_count
    types = (type_called(options.cache_type_k), type_called(options.cache_type_v))
    heads = per_layer(summary.head_count_kv, count)
    windowed = [bool(flag) for flag in per_layer([int(flag) for flag in summary.sliding_layers], count)]
    indexed = [bool(flag) for flag in per_layer([int(flag) for flag in summary.indexer_layers] or [1], count)]
    states = _states(summary, count)
    widest = 0
    if not flash_attention(summary, options):
        values = {flag: widths(summary, windowed=flag)[1] for flag in (False, True)}
        widest = max((values[flag] * number for flag, number in zip(windowed, heads, strict=True)), default=0)
    kept = 1 + states_rolled_back(summary, options)
    known: dict[tuple[int, bool, bool, int], LayerCache] = {}
    caches = []
    for kind in zip(heads, windowed, indexed, states, strict=True):
        if kind not in known:  # most layers are alike
            number, flag, has_index, state = kind
            cells = (geometry.window if flag else geometry.cells) * geometry.streams
            key, value = (width * number for width in widths(summary, windowed=flag))
            pair = _pair(types, key, max(value, widest), latent=summary.key_length_mla is not None) if number else 0
            index = 0
            if number and has_index and summary.indexer_length:
                index = types[0].row(summary.indexer_length) + types[1].row(summary.indexer_value_length)
            held = state * geometry.slots * kept
            known[kind] = LayerCache(pair * cells, index * geometry.cells * geometry.streams, held, flag)
        caches.append(known[kind])
    return caches


def states_rolled_back(summary: HeaderSummary, options: Options) -> int:
    """Give how many further states a slot has, so that drafted tokens can be taken back (common/common.h:399)."""
    rolls = options.mtp and summary.recurrent and summary.architecture in ROLLED_BACK
    return options.drafted if rolls else 0


def _pair(types: tuple[GgmlElement, GgmlElement], key: int, value: int, *, latent: bool) -> int:
    """Bytes of the key and of the value of one token; a latent one (MLA) has no value of its own."""
    return types[0].row(key) + (0 if latent else types[1].row(value))


def _states(summary: HeaderSummary, count: int) -> list[int]:
    """Bytes of recurrent state of each layer and slot; without a list of layers the first has all."""
    if summary.recurrent_layer_bytes:
        return per_layer(summary.recurrent_layer_bytes, count)
    flags = summary.recurrent_layers
    if any(flags):
        spread = [bool(flag) for flag in per_layer([int(flag) for flag in flags], count)]
        one = summary.recurrent_state_bytes // sum(spread)
        return [one if flag else 0 for flag in spread]
    return [summary.recurrent_state_bytes if layer == 0 else 0 for layer in range(count)]
