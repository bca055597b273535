"""Estimates the memory that one replica needs, from the summary of its header and the serving options.

Weights and cache follow llama.cpp's own geometry (build 11434); the compute buffer is a closed form for the dense
graphs that it was checked for, and an upper bound for all others; what no formula knows (driver context, kernels,
pools) is a stated margin. The estimate is for `llama-server -c N -np P --no-kv-unified -fit off` with the context
of each slot rounded up to 256, the whole model on one device or all of it on the CPU.
"""

from dataclasses import dataclass
from typing import Final

from paddock.api import modeldeployment
from paddock.api.modeldeployment import CacheType, FlashAttention, Mode, ServingSpec
from paddock.api.report import HeaderSummary
from paddock.api.vocabulary import GRANULE
from paddock.core import architectures as known
from paddock.core.ggml import type_called
from paddock.core.quantity import MIB, round_up

GIB: Final = 1024 * MIB
CONTEXT_STEP: Final = 256
"""Tokens: llama.cpp pads the context of a slot to a multiple of this (src/llama-context.cpp)."""
SOURCE: Final = "Estimate"
"""How these numbers are known, as status.need.source."""

OVERHEAD: Final = {
    "CUDA": 512 * MIB,
    "MUSA": 512 * MIB,
    "ROCm": 512 * MIB,
    "SYCL": 512 * MIB,
    "Vulkan": 512 * MIB,
    "Metal": 512 * MIB,
}
"""Bytes on the device beside the model, by ggml backend: context, kernels, library workspaces, pools.

Not measured here. CUDA: reports name 93 to 300 MiB for listing a device, 150 to 600 MiB for a context with kernels
(Ollama plans with 457 MiB, gguf-parser with 250 MiB) and up to 125 MiB of pool at the first prompt; the others are
taken to be like it for want of any report.
"""
UNKNOWN_OVERHEAD: Final = max(OVERHEAD.values())
"""For a backend that is not in the table, and when none is named."""
TENSOR_PADDING: Final = 768
"""Bytes: most that a GPU backend adds to one tensor: alignment to 128 and rows padded to 512 elements of Q8_K."""
SLACK: Final = 64 * MIB
"""Bytes, or a hundredth of the rest if that is more: allocator granularity and what changes between builds."""
HOST_PROCESS: Final = 300 * MIB
"""Bytes of host memory for the server process: code, libraries, threads, HTTP, tokenizer."""

_MOST: Final = 2**58
_F16: Final = 2
_F32: Final = 4
_INDEX_SCRATCH: Final = 20 * 1024
_COPY_BACKENDS: Final = frozenset({"CUDA", "ROCm", "MUSA"})
_FLASH_HEADS: Final = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
_FLASH_PAIRS: Final = frozenset({(192, 128), (320, 256), (576, 512)})


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of one replica in bytes, part by part; on the CPU every device part is 0."""

    device_weights: int = 0
    """Repeating layers and the output layer, with a tied embedding counted once more."""
    device_kv: int = 0
    """Key and value cache and recurrent state of all slots."""
    device_compute: int = 0
    """Compute buffer, an upper bound where the graph is not a known dense one."""
    device_margin: int = 0
    """What no formula knows: driver context, padding, slack."""
    host_weights: int = 0
    """Token embeddings, or the whole model on the CPU."""
    host_kv: int = 0
    """Cache and state on the CPU, and checkpoints of windowed caches and states."""
    host_compute: int = 0
    """Compute buffer, inputs and logits in host memory."""
    host_process: int = 0
    """The server process itself."""
    token_bytes: int = 0
    """What a device reads for one token; 0 on the CPU."""

    @property
    def device_bytes(self) -> int:
        """All that is needed on the device."""
        return self.device_weights + self.device_kv + self.device_compute + self.device_margin

    @property
    def host_bytes(self) -> int:
        """All that is needed in host memory."""
        return self.host_weights + self.host_kv + self.host_compute + self.host_process

    def to_status(self) -> modeldeployment.Need:
        """Give the form of status.need; on the CPU its parts are those of the host."""
        on_device = self.device_bytes > 0
        return modeldeployment.Need(
            device_bytes=self.device_bytes,
            host_bytes=self.host_bytes,
            weights_bytes=self.device_weights if on_device else self.host_weights,
            kv_cache_bytes=self.device_kv if on_device else self.host_kv,
            compute_bytes=self.device_compute if on_device else self.host_compute,
            margin_bytes=self.device_margin if on_device else self.host_process,
            bytes_per_token=self.token_bytes or None,
            source=SOURCE,
        )

    def sentence(self) -> str:
        """Say it to a person, for messages of conditions."""
        if self.device_bytes:
            parts = f"weights {_said(self.device_weights)}, KV cache {_said(self.device_kv)}"
            parts += f", compute {_said(self.device_compute)}, margin {_said(self.device_margin)}"
            return f"needs {_said(self.device_bytes)} on the device (estimate: {parts})"
        parts = f"weights {_said(self.host_weights)}, KV cache {_said(self.host_kv)}"
        parts += f", compute {_said(self.host_compute)}, process {_said(self.host_process)}"
        return f"needs {_said(self.host_bytes)} of host memory (estimate: {parts})"


def need(
    summary: HeaderSummary, serving: ServingSpec, *, gpu: bool, backend: str | None = None, checkpoints: int = 0
) -> MemoryNeed:
    """Estimate what one replica needs.

    gpu says whether the model is on a device or on the CPU. backend is ggml's name of the device's backend, for
    example CUDA; without it the largest of each margin is taken. checkpoints is the server's --ctx-checkpoints: so
    many copies of what each slot cannot recompute may be kept in host memory. Larger contexts, batches and more slots
    never need less.
    """
    shape = _Shape.of(summary, serving)
    flash = _flash(summary, serving, backend if gpu else "CPU")
    kv = _cache(summary, serving, shape) + shape.slots * summary.recurrent_state_bytes
    compute = _compute(summary, serving, shape, gpu=gpu, backend=backend)
    inputs = _input_bytes(summary, shape, flash=flash, quantized=_quantized(serving))
    inputs += _F32 * summary.vocabulary * max(shape.outputs, shape.slots)
    weights = summary.layer_tensors.bytes + summary.output_tensors.bytes
    kept = checkpoints * shape.slots * summary.recurrent_state_bytes
    kept += checkpoints * _cache(summary, serving, shape, only_windowed=True)
    if not gpu:
        return MemoryNeed(
            host_weights=_believed(summary.input_tensors.bytes + weights),
            host_kv=_believed(kv + kept),
            host_compute=_believed(compute + inputs),
            host_process=HOST_PROCESS,
        )
    tensors = summary.layer_tensors.count + summary.output_tensors.count
    margin = OVERHEAD.get(backend or "", UNKNOWN_OVERHEAD) + tensors * TENSOR_PADDING
    return MemoryNeed(
        device_weights=_believed(weights),
        device_kv=_believed(kv),
        device_compute=_believed(compute),
        device_margin=_believed(margin + max(SLACK, (weights + kv + compute) // 100)),
        host_weights=_believed(summary.input_tensors.bytes),
        host_kv=_believed(kept),
        host_compute=_believed(inputs),
        host_process=HOST_PROCESS,
        token_bytes=_believed(bytes_per_token(summary)),
    )


def bytes_per_token(summary: HeaderSummary) -> int:
    """Give the bytes of weights that are read for one token: all, less the experts that a token does not use."""
    weights = summary.layer_tensors.bytes + summary.output_tensors.bytes
    idle = summary.experts - summary.experts_used
    if not summary.experts_used or idle <= 0 or not summary.parameters:
        return weights
    width = summary.expert_feed_forward or max(summary.feed_forward, default=0)
    # An expert has three matrices: gate, up and down.
    unread = min(3 * summary.embedding_length * width * idle * summary.block_count, summary.parameters)
    return max(1, weights - weights * unread // summary.parameters)


def slot_context(serving: ServingSpec) -> int:
    """Tokens of one slot: contextLength rounded up; the server's -c is this times parallel."""
    return round_up(serving.context_length, CONTEXT_STEP)


def round_up_granule(size: int) -> int:
    """Round bytes up to the step in which memory is reserved; less than nothing is nothing."""
    return round_up(max(size, 0), GRANULE)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sizes that llama.cpp derives from the options."""

    slots: int
    cells: int
    """Tokens in the cache of a full layer, per slot."""
    window_cells: int
    """Tokens in the cache of a windowed layer, per slot; 0 without windowed layers."""
    tokens: int
    """Tokens that the device computes at once."""
    outputs: int
    """Tokens of those that logits are computed for."""

    @classmethod
    def of(cls, summary: HeaderSummary, serving: ServingSpec) -> "_Shape":
        slots, cells = serving.parallel, slot_context(serving)
        batch = min(serving.batch, cells * slots)
        ubatch = min(serving.ubatch, batch)
        window = 0
        if summary.sliding_window is not None and any(summary.sliding_layers):
            window = round_up(min(cells, summary.sliding_window + ubatch), CONTEXT_STEP)
        tokens = ubatch + slots - 1  # llama.cpp rounds up to a multiple of slots; this bound grows with slots
        outputs = min(batch, slots) if serving.mode is Mode.CHAT else tokens
        return cls(slots, cells, window, tokens, outputs)


def _cache(summary: HeaderSummary, serving: ServingSpec, shape: _Shape, *, only_windowed: bool = False) -> int:
    """Bytes of the key and value cache of all slots, or of its windowed layers."""
    key_type, value_type = type_called(serving.cache_type_k.value), type_called(serving.cache_type_v.value)
    heads = _per_layer(summary.head_count_kv, summary.block_count)
    sliding = _per_layer([int(flag) for flag in summary.sliding_layers], summary.block_count)
    widths = [_widths(summary, windowed=bool(flag)) for flag in sliding]
    flash = _flash(summary, serving, None)
    widest = max((value * count for (_, value), count in zip(widths, heads, strict=True)), default=0)
    total = 0
    for (key, value), count, windowed in zip(widths, heads, sliding, strict=True):
        if not count or (only_windowed and not windowed):
            continue
        cells = (shape.window_cells if windowed else shape.cells) * shape.slots
        total += key_type.row(key * count) * cells
        if summary.key_length_mla is None:
            total += value_type.row(value * count if flash else widest) * cells
        if summary.indexer_length:
            row = max(key_type.row(summary.indexer_length), value_type.row(summary.indexer_length))
            total += row * shape.cells * shape.slots
    return total


def _compute(summary: HeaderSummary, serving: ServingSpec, shape: _Shape, *, gpu: bool, backend: str | None) -> int:
    """Bytes of the compute buffer: attention mask, activations, and the widest step of a layer or the logits."""
    tokens, width = shape.tokens, summary.embedding_length
    forward = max(summary.feed_forward, default=0)
    step = 3 * forward * tokens
    if summary.experts_used:
        expert = summary.expert_feed_forward or forward
        step = max(step, summary.experts_used * (3 * width + 3 * expert) * tokens)
    activations = _F32 * 4 * width * tokens
    step = max(_F32 * step, _F32 * (summary.vocabulary + width) * shape.outputs)
    graph = (activations + step) * _graph_factor(summary) // 100
    if summary.recurrent:
        graph += 3 * _F32 * 4 * summary.recurrent_width * tokens + 2 * summary.recurrent_state_bytes
    cells = _mask_cells(summary, shape)
    total = graph + _F16 * tokens * cells
    heads = max(summary.head_count, default=0)
    if not _flash(summary, serving, backend if gpu else "CPU"):
        # With latent attention the scores of all slots are held three times over; measured on deepseek2.
        copies = 1 if summary.key_length_mla is None else 3
        total += _F32 * copies * (heads + 1) * tokens * cells
    elif gpu and (backend is None or backend in _COPY_BACKENDS):
        total += _flash_copy(summary, serving, shape)
    if _quantized(serving):
        total += _F32 * tokens * (width + heads * summary.key_length)  # queries are rotated as the cache is
    if summary.indexer_length:
        total += _F32 * tokens * (_INDEX_SCRATCH + (heads + 6) * cells * shape.slots)
    return total + total // 400 + 128 * 1024


def _graph_factor(summary: HeaderSummary) -> int:
    """Percent of the closed form that is planned."""
    if summary.architecture in known.MEASURED_DENSE and not summary.experts_used:
        return 100
    return 110 if summary.architecture in known.COMPARED else 300


def _mask_cells(summary: HeaderSummary, shape: _Shape) -> int:
    """Tokens that the attention masks cover per computed token."""
    if any(summary.head_count_kv):
        return shape.cells + shape.window_cells
    return 0 if summary.recurrent else 2 * shape.tokens


def _input_bytes(summary: HeaderSummary, shape: _Shape, *, flash: bool, quantized: bool) -> int:
    """Bytes of the graph's inputs in host memory: embedded tokens, positions, masks, rotations of a quantized cache."""
    embedded = 3 + summary.input_tensors.count
    mask = _F16 if flash else _F32 + _F32  # without FlashAttention 32 bits, and room lost around the larger masks
    if summary.indexer_length:
        mask = (2 if flash else 3) * _F32 * shape.slots
    inputs = shape.tokens * (_F32 * embedded * summary.embedding_length + mask * _mask_cells(summary, shape))
    if quantized:
        inputs += 2 * _F32 * max(summary.key_length, summary.value_length) ** 2
    if summary.recurrent:
        inputs += 2 * _F32 * shape.tokens**2
    return inputs + inputs // 400 + 128 * 1024


def _quantized(serving: ServingSpec) -> bool:
    return serving.cache_type_k.quantized or serving.cache_type_v.quantized


def _flash(summary: HeaderSummary, serving: ServingSpec, backend: str | None) -> bool:
    """Say whether FlashAttention will be in use; with Auto it is not where the device lacks a kernel for the heads."""
    if serving.flash_attention is FlashAttention.OFF or summary.architecture in known.WITHOUT_FLASH:
        return False
    if serving.flash_attention is FlashAttention.ON or backend not in _COPY_BACKENDS | {None}:
        return True
    key, value = summary.key_length, summary.value_length
    return (key == value and key in _FLASH_HEADS) or (key, value) in _FLASH_PAIRS or not any(summary.head_count)


def _flash_copy(summary: HeaderSummary, serving: ServingSpec, shape: _Shape) -> int:
    """Bytes of the 16-bit copy of the largest layer's cache, which CUDA's kernels need of other types."""
    if serving.cache_type_k is CacheType.F16 and serving.cache_type_v is CacheType.F16:
        return 0
    heads = max(summary.head_count_kv, default=0)
    sizes = [sum(_widths(summary, windowed=windowed)) for windowed in (False, True)]
    return _F16 * max(sizes) * heads * shape.cells * shape.slots


def _widths(summary: HeaderSummary, *, windowed: bool) -> tuple[int, int]:
    """Elements of a key and of a value per head."""
    if not windowed:
        return summary.key_length, summary.value_length
    key = summary.key_length if summary.key_length_swa is None else summary.key_length_swa
    value = summary.value_length if summary.value_length_swa is None else summary.value_length_swa
    return key, value


def _per_layer(sizes: list[int], count: int) -> list[int]:
    """Spread a list that has one element for all, or none, over the layers."""
    if len(sizes) <= 1:
        return (sizes or [0]) * count
    return (sizes + sizes[-1:] * count)[:count]


def _believed(size: int) -> int:
    """Cut what no machine has, so that sums stay within the API's 64 bits."""
    return min(size, _MOST)


def _said(size: int) -> str:
    """Say bytes as people do: 950 MiB, 11.2 GiB."""
    return f"{-(-size // MIB)} MiB" if size < GIB else f"{size / GIB:.1f} GiB"
