"""The option sets that every model is measured with: what `paddock estimate` is told, by the names of its JSON."""

from typing import Any, Final

from paddock.core.geometry import Options

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
OF_EXPERTS: Final = frozenset({"experts", "some experts"})
"""Sets for models with experts only."""
WHOLE: Final = frozenset(name for name, told in SETS.items() if not {"gpuLayers", "cpuMoe"} & set(told))
"""Sets with all of the model on the device."""


def option_set(name: str) -> dict[str, Any]:
    """Give every option of a set."""
    return {**DEFAULTS, **SETS[name]}


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
        gpu_layers=None if told["gpuLayers"] < 0 else told["gpuLayers"],
        cpu_moe=told.get("cpuMoe", 0),
    )
