"""Sparse GGUF files with the shapes of published models: the real header, a hole instead of the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.gguf_writer import Q4_K, Q8_0, Spec, Value, write_gguf

F32, Q6_K, MXFP4 = 0, 14, 39


@dataclass(frozen=True)
class Shape:
    """A decoder of the usual kind: attention with grouped heads, gated feed-forward, perhaps experts."""

    architecture: str
    layers: int
    width: int
    heads: int
    heads_kv: int
    head: int
    forward: int
    vocabulary: int
    tied: bool = False
    context: int = 131_072
    head_norms: bool = False
    post_norms: bool = False
    biases: bool = False
    fused: bool = False
    """One tensor for queries, keys and values, and one for both halves of the feed-forward (phi3)."""
    experts: int = 0
    used: int = 0
    expert_forward: int = 0
    router_norm: bool = False
    extra: Mapping[str, Value] = field(default_factory=dict)
    weights: int = Q4_K


_WINDOW = "attention.sliding_window"
_GRANITE: dict[str, Value] = {
    "logit_scale": 16.0,
    "residual_scale": 0.22,
    "embedding_scale": 12.0,
    "attention.scale": 0.0078125,
}
SHAPES: dict[str, Shape] = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128_256, tied=True),
    "llama-3.2-3b": Shape("llama", 28, 3072, 24, 8, 128, 8192, 128_256, tied=True),
    "llama-3.1-8b": Shape("llama", 32, 4096, 32, 8, 128, 14_336, 128_256),
    "llama-3.1-70b": Shape("llama", 80, 8192, 64, 8, 128, 28_672, 128_256),
    "llama-2-7b": Shape("llama", 32, 4096, 32, 32, 128, 11_008, 32_000, context=4096),
    "mistral-7b-v0.3": Shape("llama", 32, 4096, 32, 8, 128, 14_336, 32_768, context=32_768),
    "mistral-nemo-12b": Shape("llama", 40, 5120, 32, 8, 128, 14_336, 131_072),
    "mistral-small-24b": Shape("llama", 40, 5120, 32, 8, 128, 32_768, 131_072, context=32_768),
    "smollm2-360m": Shape("llama", 32, 960, 15, 5, 64, 2560, 49_152, tied=True, context=8192, weights=Q8_0),
    "mixtral-8x7b": Shape(
        "llama", 32, 4096, 32, 8, 128, 14_336, 32_000, context=32_768, experts=8, used=2, expert_forward=14_336
    ),
    "qwen2.5-0.5b": Shape(
        "qwen2", 24, 896, 14, 2, 64, 4864, 151_936, tied=True, context=32_768, biases=True, weights=Q8_0
    ),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064, biases=True),
    "qwen2.5-32b": Shape("qwen2", 64, 5120, 40, 8, 128, 27_648, 152_064, biases=True),
    "qwen3-0.6b": Shape(
        "qwen3", 28, 1024, 16, 8, 128, 3072, 151_936, tied=True, context=40_960, head_norms=True, weights=Q8_0
    ),
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12_288, 151_936, context=40_960, head_norms=True),
    "qwen3-32b": Shape("qwen3", 64, 5120, 64, 8, 128, 25_600, 151_936, context=40_960, head_norms=True),
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 48, 2048, 32, 4, 128, 6144, 151_936, head_norms=True, experts=128, used=8, expert_forward=768
    ),
    "qwen3-235b-a22b": Shape(
        "qwen3moe", 94, 4096, 64, 4, 128, 12_288, 151_936, head_norms=True, experts=128, used=8, expert_forward=1536
    ),
    "gemma-2-2b": Shape(
        "gemma2", 26, 2304, 8, 4, 256, 9216, 256_000, True, 8192, post_norms=True, extra={_WINDOW: 4096}
    ),
    "gemma-2-9b": Shape(
        "gemma2", 42, 3584, 16, 8, 256, 14_336, 256_000, True, 8192, post_norms=True, extra={_WINDOW: 4096}
    ),
    "gemma-3-1b": Shape(
        "gemma3", 26, 1152, 4, 1, 256, 6912, 262_144, True, 32_768, True, True, extra={_WINDOW: 512},
        weights=Q8_0,
    ),
    "gemma-3-4b": Shape(
        "gemma3", 34, 2560, 8, 4, 256, 10_240, 262_144, True, 131_072, True, True, extra={_WINDOW: 1024}
    ),
    "gemma-3-12b": Shape(
        "gemma3", 48, 3840, 16, 8, 256, 15_360, 262_144, True, 131_072, True, True, extra={_WINDOW: 1024}
    ),
    "gemma-3-27b": Shape(
        "gemma3", 62, 5376, 32, 16, 128, 21_504, 262_144, True, 131_072, True, True, extra={_WINDOW: 1024}
    ),
    "phi-4": Shape("phi3", 40, 5120, 40, 10, 128, 17_920, 100_352, context=16_384, fused=True),
    "phi-3.5-mini": Shape("phi3", 32, 3072, 32, 32, 96, 8192, 32_064, fused=True),
    "granite-3.1-8b": Shape("granite", 40, 4096, 32, 8, 128, 12_800, 49_155, tied=True, extra=_GRANITE),
    "gpt-oss-20b": Shape(
        "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201_088, experts=32, used=4, expert_forward=2880,
        extra={_WINDOW: 128}, weights=Q8_0,
    ),
    "gpt-oss-120b": Shape(
        "gpt-oss", 36, 2880, 64, 8, 64, 2880, 201_088, experts=128, used=4, expert_forward=2880,
        extra={_WINDOW: 128}, weights=Q8_0,
    ),
    "olmoe-7b": Shape(
        "olmoe", 16, 2048, 16, 16, 128, 1024, 50_304, context=4096, head_norms=True, experts=64, used=8,
        expert_forward=1024,
    ),
}  # fmt: skip
"""By the model's name; what the files of the publishers say (config.json)."""


def metadata(shape: Shape) -> dict[str, Value]:
    """Give the metadata of a shape."""
    own: dict[str, Value] = {
        "block_count": shape.layers,
        "embedding_length": shape.width,
        "context_length": shape.context,
        "feed_forward_length": shape.forward,
        "vocab_size": shape.vocabulary,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads_kv,
        "attention.key_length": shape.head,
        "attention.value_length": shape.head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": shape.head,
        **shape.extra,
    }
    if shape.experts:
        own |= {"expert_count": shape.experts, "expert_used_count": shape.used}
        own["expert_feed_forward_length"] = shape.expert_forward
    keys: dict[str, Value] = {"general.architecture": shape.architecture, "tokenizer.ggml.model": "no_vocab"}
    return keys | {f"{shape.architecture}.{name}": value for name, value in own.items()}


def tensors(shape: Shape) -> list[Spec]:
    """Give the tensor table of a shape."""
    kind, wide = shape.weights, Q8_0 if shape.weights == Q8_0 else Q6_K
    specs = [
        Spec("token_embd.weight", (shape.width, shape.vocabulary), wide if shape.tied else kind),
        Spec("output_norm.weight", (shape.width,)),
    ]
    if not shape.tied:
        specs.append(Spec("output.weight", (shape.width, shape.vocabulary), wide))
    for layer in range(shape.layers):
        specs += [Spec(f"blk.{layer}.{name}", size, type_) for name, size, type_ in _layer(shape, kind, wide)]
    return specs


_Row = tuple[str, tuple[int, ...], int]


def _layer(shape: Shape, kind: int, wide: int) -> Iterator[_Row]:
    width, queries, keys = shape.width, shape.heads * shape.head, shape.heads_kv * shape.head
    yield "attn_norm.weight", (width,), F32
    if shape.fused:
        yield "attn_qkv.weight", (width, queries + 2 * keys), kind
    else:
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            yield f"attn_{name}.weight", (width, size), kind
            if shape.biases or shape.architecture == "gpt-oss":
                yield f"attn_{name}.bias", (size,), F32
    yield "attn_output.weight", (queries, width), kind
    if shape.head_norms:
        whole = shape.architecture == "olmoe"
        yield "attn_q_norm.weight", (queries if whole else shape.head,), F32
        yield "attn_k_norm.weight", (keys if whole else shape.head,), F32
    if shape.post_norms:
        yield "post_attention_norm.weight", (width,), F32
        yield "post_ffw_norm.weight", (width,), F32
    if shape.architecture == "gpt-oss":
        yield "attn_output.bias", (width,), F32
        yield "attn_sinks.weight", (shape.heads,), F32
        yield "post_attention_norm.weight", (width,), F32
    else:
        yield "ffn_norm.weight", (width,), F32
    yield from _forward(shape, kind, wide)


def _forward(shape: Shape, kind: int, wide: int) -> Iterator[_Row]:
    width, forward = shape.width, shape.expert_forward or shape.forward
    if not shape.experts:
        if shape.fused:
            yield "ffn_up.weight", (width, 2 * forward), kind
        else:
            yield "ffn_gate.weight", (width, forward), kind
            yield "ffn_up.weight", (width, forward), kind
        yield "ffn_down.weight", (forward, width), wide
        return
    own = shape.architecture == "gpt-oss"
    yield "ffn_gate_inp.weight", (width, shape.experts), F32
    if own:
        yield "ffn_gate_inp.bias", (shape.experts,), F32
    for name, one, other in (("gate", width, forward), ("up", width, forward), ("down", forward, width)):
        yield f"ffn_{name}_exps.weight", (one, other, shape.experts), MXFP4 if own else kind
        if own:
            yield f"ffn_{name}_exps.bias", (other, shape.experts), F32


def write_corpus(folder: Path) -> list[Path]:
    """Write every model of the corpus; each takes some hundred kilobytes of disk."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_gguf(folder / f"{name}.gguf", metadata(shape), tensors(shape)) for name, shape in SHAPES.items()]
