"""The sizes that llama.cpp (build 11434) derives from a server's options before it allocates anything."""

from dataclasses import dataclass
from typing import Final, Literal

from paddock.api.report import HeaderSummary
from paddock.core import architectures as known
from paddock.core.ggml import type_called
from paddock.core.quantity import round_up

CONTEXT_STEP: Final = 256
"""Tokens: llama.cpp pads the context to a multiple of this (src/llama-context.cpp:268)."""
DEFAULT_CONTEXT: Final = 4096
"""Tokens, where neither the options nor the file say."""


Pooling = Literal["none", "mean", "cls", "last", "rank"]
POOLINGS: Final[tuple[Pooling, ...]] = ("none", "mean", "cls", "last", "rank")
"""By llama.cpp's numbers (enum llama_pooling_type), which files hold."""


@dataclass(frozen=True, slots=True)
class Options:
    """What llama-server is told, by its own meaning."""

    context: int = 0
    """-c: tokens of all slots together; 0 is the context that the model was trained with."""
    parallel: int = 1
    """-np: slots."""
    kv_unified: bool = False
    """One cache for all slots."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch: int = 2048
    ubatch: int = 512
    flash_attention: Literal["on", "off", "auto", "given up"] = "auto"
    """given up is what llama.cpp makes of auto after the cache was laid out for it; nobody can ask for it."""
    embeddings: bool = False
    """A server that gives embeddings or ranks, not text."""
    pooling: Pooling | None = None
    """How the embeddings of an input become one, or its rank; None is as the file says. Without embeddings nothing."""
    gpu_layers: int | None = None
    """Layers on the device, the output layer counted as one; None is all, 0 a server without a device."""
    cpu_moe: int = 0
    """--n-cpu-moe: so many layers keep their experts in host memory."""
    shares: tuple[float, ...] = ()
    """-ts: what each of several devices gets; one device without."""
    split_mode: Literal["layer", "row", "tensor"] = "layer"
    """-sm: what is divided over several devices: layers, rows of matrices, or every tensor by heads."""
    drafted: int = 0
    """Tokens that a draft model, or the model's own head, proposes at once."""
    mtp: bool = False
    """--spec-type draft-mtp: the model's own head drafts."""
    overrides: tuple[tuple[str, str], ...] = ()
    """-ot: patterns of tensors' names and where they are instead, CPU or a device by the number at its name's end."""
    backend: str = "generic"
    """generic, cuda, hip, vulkan, sycl, metal or another: what is not in the tables is planned with the largest."""

    @property
    def quantized(self) -> bool:
        """Whether a cache is of a type with blocks."""
        return any(type_called(name).block > 1 for name in (self.cache_type_k, self.cache_type_v))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Derived sizes, in tokens unless stated."""

    slots: int
    """Sequences (n_seq_max)."""
    streams: int
    """Caches beside each other: 1 when unified, else one per slot (n_stream)."""
    context: int
    """Total context after padding (n_ctx)."""
    cells: int
    """Cells of a full layer per stream (n_ctx_seq)."""
    window: int
    """Cells of a windowed layer per stream; 0 without windowed layers."""
    tokens: int
    """Tokens of the largest prompt graph."""
    outputs: int
    """Tokens of those that logits are computed for."""

    @classmethod
    def of(cls, summary: HeaderSummary, options: Options) -> "Geometry":
        """Derive the sizes (src/llama-context.cpp:248-300, 630-680, 2526-2534)."""
        slots, context = (
            options.parallel,
            round_up(options.context or summary.context_train or DEFAULT_CONTEXT, CONTEXT_STEP),
        )
        cells = context if options.kv_unified else round_up(context // slots or 1, CONTEXT_STEP)
        context = cells if options.kv_unified else cells * slots
        batch = min(options.ubatch if options.embeddings else options.batch, context)
        ubatch = min(options.ubatch, batch)
        window = 0
        if summary.sliding_window is not None and any(summary.sliding_layers):
            seen = summary.sliding_window * (slots if options.kv_unified else 1) + ubatch
            window = round_up(min(cells, seen), CONTEXT_STEP)
        outputs = min(ubatch, batch if options.embeddings else min(batch, slots * (1 + options.drafted)))
        tokens = round_up(ubatch, slots)
        return cls(slots, 1 if options.kv_unified else slots, context, cells, window, tokens, outputs)


def pooling_of(summary: HeaderSummary, options: Options) -> Pooling:
    """Say how embeddings are pooled (src/llama-context.cpp:218-224); a file with an unknown number does as without."""
    if options.pooling is not None:
        return options.pooling
    number = summary.graph.numbers.get("pooling_type", 0) if summary.graph is not None else 0
    return POOLINGS[number] if number < len(POOLINGS) else "none"


def flash_attention(summary: HeaderSummary, options: Options) -> bool:
    """Say whether FlashAttention will be in use; with auto it is not where CUDA lacks a kernel for the heads."""
    if options.flash_attention in ("off", "given up") or summary.architecture in known.WITHOUT_FLASH:
        return False
    if options.flash_attention == "on" or not copies_cache(options):
        return True
    key, value = summary.key_length, summary.value_length
    return (key == value and key in _FLASH_HEADS) or (key, value) in _FLASH_PAIRS or not any(summary.head_count)


_NO_COPY: Final = frozenset({"generic", "vulkan", "sycl", "metal", "rpc", "other"})

_FLASH_HEADS: Final = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
_FLASH_PAIRS: Final = frozenset({(192, 128), (320, 256), (576, 512)})


def copies_cache(options: Options) -> bool:
    """Say whether FlashAttention on the device copies a cache of another type to 16 bits (ggml-cuda/fattn.cu:722)."""
    return options.gpu_layers != 0 and options.backend not in _NO_COPY


def widths(summary: HeaderSummary, *, windowed: bool) -> tuple[int, int]:
    """Give the elements of a key and of a value per head."""
    if not windowed:
        return summary.key_length, summary.value_length
    key = summary.key_length if summary.key_length_swa is None else summary.key_length_swa
    value = summary.value_length if summary.value_length_swa is None else summary.value_length_swa
    return key, value


def per_layer(sizes: list[int], count: int) -> list[int]:
    """Spread a list that has one element for all, or none, over the layers."""
    if len(sizes) <= 1:
        return (sizes or [0]) * count
    return (sizes + sizes[-1:] * count)[:count]
