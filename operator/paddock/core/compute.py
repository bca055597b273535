"""The compute buffer: what the largest prompt graph needs at once, on the device and in host memory.

These are upper bounds, from the closed form of a dense graph.
"""

from typing import Final

from paddock.api.report import HeaderSummary
from paddock.core import architectures as known
from paddock.core.geometry import CONTEXT_STEP, Geometry, Options, copies_cache, flash_attention, widths
from paddock.core.quantity import round_up

_F16: Final = 2
_F32: Final = 4
_I64: Final = 8
_INDEX_SCRATCH: Final = 20 * 1024
_ROOM: Final = 128 * 1024
"""Bytes of small inputs (positions, indices) that the bounds do not list."""


def bounded_device(summary: HeaderSummary, options: Options, geometry: Geometry) -> int:
    """Give an upper bound of the device's compute buffer: mask, activations, and the widest step or the logits."""
    tokens, width = geometry.tokens, summary.embedding_length
    forward = max(summary.feed_forward, default=0)
    step = 3 * forward * tokens
    if summary.experts_used:
        expert = summary.expert_feed_forward or forward
        step = max(step, summary.experts_used * (3 * width + 3 * expert) * tokens)
    step = max(_F32 * step, _F32 * (summary.vocabulary + width) * geometry.outputs)
    if not _measured(summary):  # others may compute attention and feed-forward beside each other
        step += _F32 * _queries(summary) * tokens
    graph = max(_F32 * 4 * width * tokens + step, _F32 * _attention(summary) * tokens) * _graph_factor(summary) // 100
    if summary.recurrent:
        states = summary.recurrent_state_bytes * (geometry.slots if options.kv_unified else 1)
        graph += 3 * _F32 * 4 * summary.recurrent_width * tokens + 2 * states
    cells = mask_cells(summary, geometry)
    total = graph + _F16 * tokens * cells
    heads = max(summary.head_count, default=0)
    if not flash_attention(summary, options):
        copies = 1 if summary.key_length_mla is None else 3
        total += _F32 * copies * (heads + 1) * tokens * cells + _scattered(summary, geometry)
    total += cast_cache(summary, options, geometry)
    if options.quantized:
        total += _F32 * tokens * (width + heads * summary.key_length)  # queries are rotated as the cache is
    if summary.indexer_length:
        total += _F32 * tokens * (_INDEX_SCRATCH + (heads + 6) * cells * geometry.slots)
    return total + total // 400 + _ROOM


def _queries(summary: HeaderSummary) -> int:
    """Give the elements of all queries of a token, or of what attention makes of them."""
    return max(summary.head_count, default=0) * max(max(widths(summary, windowed=flag)) for flag in (False, True))


def _attention(summary: HeaderSummary) -> int:
    """Give at least the elements of a token that attention needs at once, where heads are wider than a token.

    These are the token and its residual; queries before and after their rotation, and a gate; keys and values twice.
    """
    keys = max(summary.head_count_kv, default=0) * max(max(widths(summary, windowed=flag)) for flag in (False, True))
    return 2 * summary.embedding_length + 3 * _queries(summary) + 4 * keys


def bounded_host(summary: HeaderSummary, options: Options, geometry: Geometry) -> int:
    """Give an upper bound of the inputs in host memory: embedded tokens, masks, rotations of a quantized cache."""
    embedded = 3 + summary.input_tensors.count
    flash = flash_attention(summary, options)
    mask = _F16 if flash else _F32 + _F32  # without FlashAttention 32 bits, and room lost around the larger masks
    if summary.indexer_length:
        mask = (2 if flash else 3) * _F32 * geometry.slots
    width = _F32 * embedded * summary.embedding_length
    inputs = geometry.tokens * (width + mask * mask_cells(summary, geometry))
    if not flash:
        inputs += _scattered(summary, geometry)
    if options.quantized:
        inputs += 2 * _F32 * max(summary.key_length, summary.value_length) ** 2
    if summary.recurrent:
        inputs += 2 * _F32 * geometry.tokens**2
    return inputs + inputs // 400 + _ROOM


def pooling_bound(summary: HeaderSummary, geometry: Geometry) -> int:
    """Give an upper bound of what pooling adds: embeddings turned over, weights of the mean, a row for each slot."""
    width, tokens, slots = summary.embedding_length, geometry.tokens, geometry.slots
    return _F32 * (tokens * (width + slots) + width * slots) + _I64 * tokens + _ROOM


def _scattered(summary: HeaderSummary, geometry: Geometry) -> int:
    """Bytes of the places that values are written to one by one, which is how they are kept without FlashAttention."""
    values = max(summary.head_count_kv, default=0) * max(widths(summary, windowed=flag)[1] for flag in (False, True))
    return _I64 * geometry.tokens * values * (2 if geometry.window or _windows(summary) else 1)


def _windows(summary: HeaderSummary) -> bool:
    """Say whether a graph may have inputs of windowed layers, even where none of its layers is one."""
    return summary.architecture in known.WINDOWS or summary.architecture in known.WINDOWS_IN_FILE


def mask_cells(summary: HeaderSummary, geometry: Geometry) -> int:
    """Give the tokens that the attention masks cover per computed token."""
    if any(summary.head_count_kv):
        unused = geometry.tokens if _windows(summary) and not geometry.window else 0
        return geometry.cells + geometry.window + round_up(unused, CONTEXT_STEP)
    return 0 if summary.recurrent else 2 * geometry.tokens


def copied_cache(summary: HeaderSummary, options: Options, geometry: Geometry) -> int:
    """Give the bytes of the 16-bit copy of the largest layer's cache, which CUDA's kernels make of other types."""
    plain = options.cache_type_k == options.cache_type_v == "f16"
    if plain or not copies_cache(options) or not flash_attention(summary, options):
        return 0
    heads = max(summary.head_count_kv, default=0)
    sizes = [sum(widths(summary, windowed=windowed)) for windowed in (False, True)]
    return _F16 * max(sizes) * heads * geometry.cells * geometry.streams


def cast_cache(summary: HeaderSummary, options: Options, geometry: Geometry) -> int:
    """Give the bytes of the 16-bit copies of the largest layer's cache that FlashAttention is given of 32-bit numbers.

    llama.cpp casts keys and values of that type in the graph itself (src/llama-graph.cpp, build_attn_mha).
    """
    kinds = [options.cache_type_k == "f32", options.cache_type_v == "f32"]
    if not any(kinds) or not flash_attention(summary, options):
        return 0
    pairs = [widths(summary, windowed=flag) for flag in (False, True)]
    if summary.key_length_mla is not None:  # the value is a part of the key
        kinds, pairs = [kinds[0]] * 2, [(max(pair), max(pair)) for pair in pairs]
    widest = max(sum(width for width, cast in zip(pair, kinds, strict=True) if cast) for pair in pairs)
    return _F16 * max(summary.head_count_kv, default=0) * widest * geometry.cells * geometry.streams


def copied_values(summary: HeaderSummary, geometry: Geometry) -> int:
    """Give the bytes of the largest layer's values, as 16-bit numbers."""
    heads = max(summary.head_count_kv, default=0)
    widest = max(widths(summary, windowed=flag)[1] for flag in (False, True))
    return _F16 * heads * widest * geometry.cells * geometry.streams


def copied_weights(summary: HeaderSummary) -> int:
    """Give an upper bound of the weights that a GPU copies from host memory at once to compute a prompt with them.

    A copy is given back before the next weight is copied (ggml/src/ggml-backend.cpp:1465-1480); all matrices of a
    layer, or of its experts, are more than any one with its bias.
    """
    layers = max(summary.layer_bytes, default=0) or summary.layer_tensors.bytes
    return max(summary.expert_bytes, default=0) or layers


def logits(summary: HeaderSummary, geometry: Geometry) -> int:
    """Give the bytes of the output buffer in host memory (src/llama-context.cpp:2118-2165)."""
    return _F32 * summary.vocabulary * max(geometry.outputs, geometry.slots)


def _graph_factor(summary: HeaderSummary) -> int:
    """Percent of the closed form that is planned."""
    if _measured(summary):
        return 100
    return 110 if summary.architecture in known.COMPARED else 300


def _measured(summary: HeaderSummary) -> bool:
    return summary.architecture in known.MEASURED_DENSE and not summary.experts_used
