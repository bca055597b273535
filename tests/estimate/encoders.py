"""Headers of encoders, which turn texts into vectors or ranks; llama.cpp's own test program writes none of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from support.gguf_writer import F16, F32, Spec, Value

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
"""Pooling, by llama.cpp's numbers."""
_Row = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True)
class Encoder:
    """An encoder of one of the families of BERT, or of Gemma's."""

    architecture: str
    layers: int
    width: int
    heads: int
    forward: int
    vocabulary: int
    context: int
    pooling: int = MEAN
    heads_kv: int = 0
    """0 is as many as heads."""
    head: int = 0
    """0 is the width divided by the heads."""
    experts: int = 0
    used: int = 0
    every: int = 2
    """Which layers have experts."""
    head_norms: bool = False
    gated: bool = True
    """Of jina-bert-v2: whether gate and up are two matrices."""
    biases: bool = True
    fused: bool = False
    classifier: bool = False
    labels: int = 1
    window: int = 0
    dense: int = 0
    """Width of Gemma's two last layers; 0 is without."""
    types: int = 2
    extra: Mapping[str, Value] = field(default_factory=dict)


ENCODERS: Final[dict[str, Encoder]] = {
    "all-minilm-l6": Encoder("bert", 6, 384, 12, 1536, 30_522, 512),
    "bge-small-en": Encoder("bert", 12, 384, 12, 1536, 30_522, 512, CLS),
    "bge-base-en": Encoder("bert", 12, 768, 12, 3072, 30_522, 512, CLS),
    "bge-large-en": Encoder("bert", 24, 1024, 16, 4096, 30_522, 512, CLS),
    "bge-m3": Encoder("bert", 24, 1024, 16, 4096, 250_002, 8192, CLS, types=1),
    "bge-reranker-v2-m3": Encoder("bert", 24, 1024, 16, 4096, 250_002, 8192, RANK, classifier=True, types=1),
    "nomic-embed-text": Encoder("nomic-bert", 12, 768, 12, 3072, 30_522, 2048, biases=False, fused=True),
    "nomic-embed-text-v2-moe": Encoder(
        "nomic-bert-moe", 12, 768, 12, 3072, 250_048, 512, experts=8, used=2, fused=True, types=1
    ),
    "jina-embeddings-v2-base": Encoder("jina-bert-v2", 12, 768, 12, 3072, 30_528, 8192),
    "jina-embeddings-v3": Encoder("jina-bert-v3", 24, 1024, 16, 4096, 250_002, 8194, fused=True, types=1),
    "modernbert-embed-base": Encoder("modern-bert", 22, 768, 12, 1152, 50_368, 8192, window=128),
    "eurobert-210m": Encoder("eurobert", 12, 768, 12, 3072, 128_256, 8192),
    "neobert": Encoder("neo-bert", 28, 768, 12, 2048, 30_522, 4096, CLS),
    "embeddinggemma-300m": Encoder(
        "gemma-embedding", 24, 768, 3, 1152, 262_144, 2048, heads_kv=1, head=256, window=512, dense=3072
    ),
}  # fmt: skip
"""By the model's name; what the files of the publishers say (config.json)."""

_SIZES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("bert", {"types": 2}),
    ("nomic-bert", {"fused": True, "biases": False}),
    ("nomic-bert", {}),
    ("nomic-bert-moe", {"fused": True, "experts": 8, "used": 3}),
    ("jina-bert-v2", {}),
    ("jina-bert-v2", {"gated": False}),
    ("jina-bert-v2", {"head_norms": True}),
    ("jina-bert-v3", {"fused": True}),
    ("jina-bert-v3", {}),
    ("modern-bert", {"window": 128}),
    ("eurobert", {}),
    ("neo-bert", {}),
    ("gemma-embedding", {"window": 300, "head": 160, "dense": 1760}),
    ("gemma-embedding", {"window": 300, "head": 160}),
)
_CLASSIFYING: Final = frozenset({"bert", "jina-bert-v2", "modern-bert", "neo-bert"})
_SMALL: Final[tuple[dict[str, int], ...]] = (
    {"layers": 7, "width": 768, "heads": 8, "heads_kv": 8, "forward": 1312, "vocabulary": 2016, "context": 20_000},
    {"layers": 9, "width": 1152, "heads": 6, "heads_kv": 6, "forward": 928, "vocabulary": 3040, "context": 20_000},
    {"layers": 8, "width": 480, "heads": 10, "heads_kv": 10, "forward": 2208, "vocabulary": 9248, "context": 20_000},
)


def small() -> Iterator[tuple[str, int, Encoder]]:
    """Give encoders to derive from: name, number of the set of sizes, shape; with a classifier and without."""
    for place, (architecture, more) in enumerate(_SIZES):
        for number, sizes in enumerate(_SMALL, start=1):
            told: dict[str, Any] = {**sizes, **more}
            if architecture == "gemma-embedding":  # the last layer sees everything in some, a window in others
                told |= {"heads_kv": sizes["heads"] // 2, "layers": (12, 9, 6)[number - 1]}
            for classifier in (False, True) if architecture in _CLASSIFYING else (False,):
                shape = Encoder(architecture, **told, classifier=classifier, labels=1 + 2 * number)
                yield f"{place}{'c' if classifier else ''}-{architecture}", number, shape


def metadata(shape: Encoder) -> dict[str, Value]:
    """Give the metadata of an encoder."""
    own: dict[str, Value] = {
        "block_count": shape.layers,
        "embedding_length": shape.width,
        "context_length": shape.context,
        "feed_forward_length": shape.forward,
        "vocab_size": shape.vocabulary,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads_kv or shape.heads,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.causal": False,
        "pooling_type": shape.pooling,
        **shape.extra,
    }
    if shape.head:
        own |= {"attention.key_length": shape.head, "attention.value_length": shape.head}
    if shape.experts:
        own |= {"expert_count": shape.experts, "expert_used_count": shape.used, "moe_every_n_layers": shape.every}
    if shape.window:
        own["attention.sliding_window"] = shape.window
    if shape.classifier:
        own["classifier.output_labels"] = [f"label {number}" for number in range(shape.labels)]
    if shape.dense:
        own |= {"dense_2_feat_in": shape.width, "dense_2_feat_out": shape.dense}
        own |= {"dense_3_feat_in": shape.dense, "dense_3_feat_out": shape.width}
    keys: dict[str, Value] = {"general.architecture": shape.architecture, "tokenizer.ggml.model": "no_vocab"}
    keys["tokenizer.ggml.token_type_count"] = shape.types
    return keys | {f"{shape.architecture}.{name}": value for name, value in own.items()}


def tensors(shape: Encoder) -> list[Spec]:
    """Give the tensor table of an encoder."""
    specs = [Spec(name, size, kind) for name, size, kind in _outside(shape)]
    for layer in range(shape.layers):
        specs += [
            Spec(f"blk.{layer}.{name}", size, kind) for name, size, kind in _LAYERS[shape.architecture](shape, layer)
        ]
    return specs


def _outside(shape: Encoder) -> Iterator[_Row]:
    width, kind = shape.width, shape.architecture
    yield "token_embd.weight", (width, shape.vocabulary), F16
    if kind in _BERTS:
        yield "token_types.weight", (width, shape.types), F32
        yield from _norm("token_embd_norm", width)
    if kind == "bert":
        yield "position_embd.weight", (width, shape.context), F16
    if kind == "modern-bert":
        yield "token_embd_norm.weight", (width,), F32
    if kind in {"modern-bert", "eurobert", "gemma-embedding"}:
        yield "output_norm.weight", (width,), F32
    if kind == "neo-bert":
        yield "enc.output_norm.weight", (width,), F32
    if shape.dense:
        yield "dense_2.weight", (width, shape.dense), F16
        yield "dense_3.weight", (shape.dense, width), F16
    if shape.classifier:
        yield from _classifier(shape)


def _classifier(shape: Encoder) -> Iterator[_Row]:
    width, kind = shape.width, shape.architecture
    if kind == "jina-bert-v2":
        yield from _linear("cls", width, 1)
    elif kind in {"bert", "neo-bert"}:
        yield from _linear("cls", width, width)
        yield from _linear("cls.output", width, shape.labels)
    elif kind == "modern-bert":
        yield "cls.weight", (width, width), F16
        yield "cls.norm.weight", (width,), F32
        yield from _linear("cls.output", width, shape.labels)


def _norm(name: str, width: int) -> Iterator[_Row]:
    yield f"{name}.weight", (width,), F32
    yield f"{name}.bias", (width,), F32


def _linear(name: str, width: int, rows: int, *, biases: bool = True) -> Iterator[_Row]:
    yield f"{name}.weight", (width, rows), F16
    if biases:
        yield f"{name}.bias", (rows,), F32


def _attention(shape: Encoder, *, biases: bool) -> Iterator[_Row]:
    head = shape.head or shape.width // shape.heads
    queries, keys = shape.heads * head, (shape.heads_kv or shape.heads) * head
    if shape.fused:
        yield from _linear("attn_qkv", shape.width, queries + 2 * keys, biases=biases)
    else:
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield from _linear(f"attn_{name}", shape.width, rows, biases=biases)
    yield from _linear("attn_output", queries, shape.width, biases=biases)


def _bert(shape: Encoder, layer: int) -> Iterator[_Row]:
    width, forward, kind = shape.width, shape.forward, shape.architecture
    biases = shape.biases and kind != "nomic-bert"
    yield from _attention(shape, biases=biases)
    if shape.head_norms:
        yield from _norm("attn_q_norm", width)
        yield from _norm("attn_k_norm", width)
    yield from _norm("attn_output_norm", width)
    if shape.experts and layer % shape.every == 1:
        yield "ffn_gate_inp.weight", (width, shape.experts), F32
        yield "ffn_up_exps.weight", (width, forward, shape.experts), F16
        yield "ffn_down_exps.weight", (forward, width, shape.experts), F16
    elif kind == "jina-bert-v2":
        if shape.gated:
            yield "ffn_gate.weight", (width, forward), F16
        yield "ffn_up.weight", (width, forward if shape.gated else 2 * forward), F16
        yield from _linear("ffn_down", forward, width)
    else:
        if kind == "nomic-bert":
            yield "ffn_gate.weight", (width, forward), F16
        yield from _linear("ffn_up", width, forward, biases=biases)
        yield from _linear("ffn_down", forward, width, biases=biases)
    yield from _norm("layer_output_norm", width)


def _modern(shape: Encoder, layer: int) -> Iterator[_Row]:
    width = shape.width
    if layer:
        yield "attn_norm.weight", (width,), F32
    yield "attn_qkv.weight", (width, 3 * width), F16
    yield "attn_output.weight", (width, width), F16
    yield "ffn_up.weight", (width, 2 * shape.forward), F16
    yield "ffn_down.weight", (shape.forward, width), F16
    yield "ffn_norm.weight", (width,), F32


def _later(shape: Encoder, _: int) -> Iterator[_Row]:
    """Give a layer of eurobert's or of Gemma's kind."""
    width, forward = shape.width, shape.forward
    yield "attn_norm.weight", (width,), F32
    yield from _attention(shape, biases=False)
    if shape.architecture == "gemma-embedding":
        yield "attn_q_norm.weight", (shape.head,), F32
        yield "attn_k_norm.weight", (shape.head,), F32
        yield "post_attention_norm.weight", (width,), F32
        yield "post_ffw_norm.weight", (width,), F32
    yield "ffn_norm.weight", (width,), F32
    for name, one, other in (("gate", width, forward), ("up", width, forward), ("down", forward, width)):
        yield f"ffn_{name}.weight", (one, other), F16


def _neo(shape: Encoder, _: int) -> Iterator[_Row]:
    width = shape.width
    yield "attn_norm.weight", (width,), F32
    yield "attn_qkv.weight", (width, 3 * width), F16
    yield "attn_output.weight", (width, width), F16
    yield "ffn_norm.weight", (width,), F32
    yield "ffn_up.weight", (width, 2 * shape.forward), F16
    yield "ffn_down.weight", (shape.forward, width), F16


_BERTS: Final = frozenset({"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"})
_LAYERS: Final = {
    **dict.fromkeys(_BERTS, _bert),
    "modern-bert": _modern,
    "eurobert": _later,
    "gemma-embedding": _later,
    "neo-bert": _neo,
}
