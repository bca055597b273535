"""The option sets that every model is measured with: what `paddock estimate` is told, by the names of its JSON."""

from typing import Any, Final

from paddock.core.geometry import POOLINGS, Options

UNSPECIFIED: Final = -1
"""Pooling as the file says; else llama.cpp's number of it."""
DEFAULTS: Final[dict[str, Any]] = {
    "context": 4096,
    "parallel": 1,
    "unified": False,
    "cacheTypeK": "f16",
    "cacheTypeV": "f16",
    "batch": 2048,
    "ubatch": 512,
    "flashAttention": "auto",
    "embeddings": False,
    "pooling": UNSPECIFIED,
    "gpuLayers": -1,
    "cpuMoe": 0,
}

ALL_LAYERS: Final = 512
"""As --cpu-moe means it."""
SETS: Final[dict[str, dict[str, Any]]] = {
    "one": {},
    "unified": {"context": 32_768, "parallel": 4, "unified": True},
    "slots": {"context": 32_768, "parallel": 4},
    "odd": {"context": 3000, "parallel": 3},
    "batch": {"context": 8192, "ubatch": 2048},
    "small": {"context": 16_384, "parallel": 8, "unified": True, "batch": 1024, "ubatch": 256},
    "q8": {"context": 8192, "parallel": 2, "cacheTypeK": "q8_0", "cacheTypeV": "q8_0"},
    "q4": {"context": 32_768, "cacheTypeK": "q4_0", "cacheTypeV": "q4_0"},
    "plain": {"context": 8192, "flashAttention": "off"},
    "plain slots": {"context": 16_384, "parallel": 4, "ubatch": 256, "flashAttention": "off"},
    "plain batch": {"context": 2048, "batch": 1024, "ubatch": 1024, "flashAttention": "off"},
    "q8 batch": {"context": 4096, "ubatch": 1024, "cacheTypeK": "q8_0", "cacheTypeV": "q8_0"},
    "embedding": {"context": 8192, "embeddings": True, "batch": 512},
    "partial": {"context": 8192, "gpuLayers": 2},
    "partial slots": {"context": 16_384, "parallel": 4, "gpuLayers": 17},
    "plain partial": {"context": 4096, "flashAttention": "off", "gpuLayers": 2},
    "no device": {"context": 8192, "gpuLayers": 0},
    "experts": {"context": 8192, "cpuMoe": ALL_LAYERS},
    "some experts": {"context": 16_384, "parallel": 2, "unified": True, "cpuMoe": 1},
}
ENCODING: Final[dict[str, dict[str, Any]]] = {
    "texts": {"context": 512, "embeddings": True},
    "long texts": {"context": 8192, "ubatch": 2048, "embeddings": True},
    "texts beside": {"context": 8192, "parallel": 4, "ubatch": 1024, "embeddings": True},
    "texts unified": {"context": 4096, "parallel": 4, "unified": True, "embeddings": True},
    "plain texts": {"context": 2048, "flashAttention": "off", "embeddings": True},
    "tokens": {"context": 2048, "parallel": 2, "embeddings": True, "pooling": 0},
    "means": {"context": 4096, "parallel": 2, "unified": True, "embeddings": True, "pooling": 1},
    "last tokens": {"context": 4096, "parallel": 3, "embeddings": True, "pooling": 3},
    "ranks": {"context": 2048, "parallel": 2, "embeddings": True, "pooling": 4},
    "many ranks": {"context": 16_384, "parallel": 8, "unified": True, "ubatch": 1024, "embeddings": True, "pooling": 4},
    "host texts": {"context": 2048, "embeddings": True, "gpuLayers": 0},
    "some layers": {"context": 2048, "embeddings": True, "gpuLayers": 3},
}
"""Sets for encoders, and for text models that are published for embeddings or ranks too."""
POOLED: Final = ("llama-3.2-1b", "qwen3-0.6b", "qwen3-8b", "gemma-3-1b", "qwen2.5-7b")
"""Text models that the sets above are measured with as well."""
OF_EXPERTS: Final = frozenset({"experts", "some experts"})
"""Sets for models with experts only."""
WHOLE: Final = frozenset(name for name, told in {**SETS, **ENCODING}.items() if not {"gpuLayers", "cpuMoe"} & set(told))
"""Sets with all of the model on the device."""


def option_set(name: str) -> dict[str, Any]:
    """Give every option of a set."""
    return {**DEFAULTS, **{**SETS, **ENCODING}[name]}


def options_of(told: dict[str, Any]) -> Options:
    """Give an option set as the estimate takes it."""
    return Options(
        context=told["context"],
        parallel=told["parallel"],
        kv_unified=told["unified"],
        cache_type_k=told["cacheTypeK"],
        cache_type_v=told["cacheTypeV"],
        batch=told["batch"],
        ubatch=told["ubatch"],
        flash_attention=told["flashAttention"],
        embeddings=told["embeddings"],
        pooling=None if told.get("pooling", UNSPECIFIED) == UNSPECIFIED else POOLINGS[told["pooling"]],
        gpu_layers=None if told["gpuLayers"] < 0 else told["gpuLayers"],
        cpu_moe=told.get("cpuMoe", 0),
    )
