"""What llama.cpp (build 11434) has built in per architecture and memory depends on, but the file does not say."""

from typing import Final, NamedTuple


class Window(NamedTuple):
    """Which layers see only a window: `period - 1` of `period` layers, beginning with a full one or ending with it."""

    period: int
    full_first: bool = False

    def layers(self, count: int) -> list[bool]:
        """Say of each of `count` layers whether it is windowed; period 0 means all."""
        if self.period == 0:
            return [True] * count
        full = 0 if self.full_first else self.period - 1
        return [layer % self.period != full for layer in range(count)]


WINDOWS: Final[dict[str, Window]] = {
    "afmoe": Window(4),
    "cohere2": Window(4),
    "cohere2moe": Window(4, full_first=True),
    "exaone-moe": Window(4),
    "exaone4": Window(4),
    "gemma2": Window(2),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma-embedding": Window(6),
    "gpt-oss": Window(2),
    "laguna": Window(4, full_first=True),
    "llama4": Window(4),
    "mellum": Window(4),
    "modern-bert": Window(3, full_first=True),
    "muse-glimmer": Window(4),
    "olmo2": Window(4),
    "plamo3": Window(8),
    "smallthinker": Window(4, full_first=True),
}
"""Fixed patterns (src/models/*.cpp, load_swa_pattern)."""

WINDOWS_IN_FILE: Final = frozenset(
    {"dots3note", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}
)
"""Architectures whose file says of each layer whether it is windowed."""

ALWAYS_WINDOWED: Final = frozenset(
    {
        "cohere2",
        "cohere2moe",
        "dots3note",
        "exaone-moe",
        "exaone4",
        "gemma-embedding",
        "gemma2",
        "gemma3n",
        "gemma4",
        "gemma4-assistant",
        "gpt-oss",
        "granite_swa",
        "maple",
        "mimo2",
        "muse-glimmer",
        "spark2_5",
        "step35",
    }
)
"""Windowed even where the file gives the window no token; in all others that means no windows."""

DEFAULT_WINDOW: Final = {"exaone4": 4096, "gemma2": 4096}
"""Tokens of the window where the file does not say; the others above need the key (src/models/*.cpp)."""

FIXED_WINDOW: Final = {"llama4": 8192, "smallthinker": 4096}
"""Tokens of the window, whatever other number the file says; llama4 has one without the key, too."""

IDLE_EXPERTS: Final = frozenset({"ernie4_5-moe"})
"""Files may hold experts of layers that do not use them: each interleave_moe_layer_step-th one does."""

UNROTATED: Final = {"smollm3": 4}
"""Each n-th layer's queries and keys are not rotated, which no file says (n_no_rope_layer_step)."""

EXAONE4_WINDOWED_LAYERS: Final = 64
"""Only the exaone4 model with this many layers is windowed."""

RECURRENT: Final = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})
"""Every layer has recurrent state and none a cache (llm_arch_is_recurrent)."""

HYBRID: Final = frozenset(
    {
        "bailingmoe3",
        "falcon-h1",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "minimax-01",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
    }
)
"""Some layers have recurrent state, others a cache (llm_arch_is_hybrid)."""

FULL_INTERVAL: Final = {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4}
"""Hybrids where each n-th layer has attention: n where the file does not say."""

CACHELESS: Final = frozenset(
    {
        "bert",
        "clef",
        "dream",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llada",
        "llada-moe",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "rnd1",
        "wavtokenizer-dec",
    }
)
"""Encoders and diffusion models: nothing is cached between tokens (llama_model::create_memory)."""

WITHOUT_OUTPUT: Final = frozenset(
    {"bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe"}
)
"""Encoders without an output matrix, so that token_embd is not used in its place."""

LOOPED: Final = frozenset({"hrm_text"})
"""The same layers are computed again and again, so that several devices hand over more than once."""

NORM_IS_OUTPUT: Final = frozenset({"lfm2", "lfm2moe"})
"""Files that call their last norm token_embd_norm (LLM_TENSOR_OUTPUT_NORM_LFM2)."""

INDEX_FACTOR: Final = {
    "deepseek32": 1,
    "dots3note": 1,
    "glm-dsa": 1,
    "glm5-next": 3,
    "hy_v4": 1,
    "minimax-m3": 1,
    "qwen4exp": 2,
}
"""Sparse attention: multiples of attention.indexer.key_length that are cached per token."""

CACHING_LAYERS: Final = {"gemma3n": 20}
"""Later layers reuse the cache of earlier ones; only the first n have one."""

WITHOUT_FLASH: Final = frozenset({"grok"})
"""llama.cpp never uses FlashAttention for these (src/llama-context.cpp)."""

WITHOUT_TENSOR_SPLIT: Final = frozenset(
    {
        "bailingmoe3",
        "bitnet",
        "deepseek2",
        "deepseek32",
        "dots3note",
        "falcon-h1",
        "gemma3n",
        "glm-dsa",
        "glm5-next",
        "granitehybrid",
        "grok",
        "hy_v4",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "mamba",
        "mamba2",
        "minicpm3",
        "minimax-01",
        "minimax-m2",
        "minimax-m3",
        "mistral4",
        "mpt",
        "nemotron_h",
        "nemotron_h_moe",
        "olmo2",
        "olmoe",
        "plamo2",
        "qwen3tts",
        "t5",
    }
)
"""llama.cpp refuses -sm tensor for these (llm_arch_supports_sm_tensor)."""

ROLLED_BACK: Final = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    }
)
"""States are kept for each token that the model's own head drafts (llm_arch_supports_rs_rollback)."""

MEASURED_DENSE: Final = frozenset({"gemma3", "llama", "qwen3"})
"""The closed form of the compute buffer agrees with llama.cpp within 0.5 % for models of real size."""

COMPARED: Final = frozenset(
    {
        "afmoe",
        "arcee",
        "arctic",
        "baichuan",
        "bailingmoe",
        "bailingmoe2",
        "bailingmoe3",
        "bloom",
        "chatglm",
        "codeshell",
        "cogvlm",
        "cohere2",
        "cohere2moe",
        "command-r",
        "dbrx",
        "deci",
        "deepseek",
        "deepseek2",
        "deepseek32",
        "deepseek4",
        "dots1",
        "dots3note",
        "dream",
        "ernie4_5",
        "ernie4_5-moe",
        "exaone",
        "exaone-moe",
        "exaone4",
        "falcon",
        "falcon-h1",
        "gemma",
        "gemma2",
        "gemma3",
        "glm-dsa",
        "glm4",
        "glm4moe",
        "glm5-next",
        "gpt-oss",
        "gpt2",
        "gptneox",
        "granite",
        "granite_swa",
        "granitehybrid",
        "granitemoe",
        "grok",
        "grovemoe",
        "hrm_text",
        "hunyuan-dense",
        "hunyuan-moe",
        "hunyuan_vl",
        "hy_v3",
        "hy_v4",
        "internlm2",
        "jais",
        "jais2",
        "jamba",
        "kimi-k3",
        "laguna",
        "lfm2",
        "lfm2moe",
        "llada",
        "llada-moe",
        "llama",
        "llama4",
        "maincoder",
        "mamba",
        "mamba2",
        "maple",
        "mellum",
        "mimo2",
        "minicpm",
        "minicpm3",
        "minimax-m2",
        "minimax-m3",
        "mistral3",
        "mistral4",
        "mpt",
        "muse-glimmer",
        "nanbeige",
        "nemotron",
        "nemotron_h",
        "nemotron_h_moe",
        "olmo",
        "olmo2",
        "olmoe",
        "openelm",
        "orion",
        "paddleocr",
        "pangu-embedded",
        "phi2",
        "phi3",
        "phimoe",
        "plamo",
        "plamo2",
        "plamo3",
        "pockettts",
        "qwen",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "qwen3tts",
        "qwen3vl",
        "qwen3vlmoe",
        "qwen4exp",
        "refact",
        "rnd1",
        "seed_oss",
        "smallthinker",
        "smollm3",
        "spark2_5",
        "stablelm",
        "starcoder",
        "starcoder2",
        "talkie",
        "xverse",
    }
)
"""The bound of the compute buffer was compared with llama.cpp's own figures for a small model of each of these."""

NOT_MODELS: Final = {
    "clip": "a projector for images or sound, not a model that answers",
    "cvector": "a control vector, not a model",
    "controlvector": "a control vector, not a model",
    "imatrix": "an importance matrix, not a model",
    "diffusion": "an image model, which llama-server does not serve",
    "flux": "an image model, which llama-server does not serve",
    "sd3": "an image model, which llama-server does not serve",
}
"""Architectures that are not language models."""
