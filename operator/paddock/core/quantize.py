"""What the same model would weigh in another quantization: the header it would have, by llama-quantize's usual mixes.

The mixes are those of build 11434 (src/llama-quant.cpp, llama_tensor_get_type_impl) without its exceptions for single
architectures, and without an importance matrix: good for advice, within about 2 % of published files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paddock.core.ggml import ELEMENTS, type_numbered
from paddock.core.gguf import GgufMetadata, Tensor

_NUMBERS: Final = {element.name: number for number, element in ELEMENTS.items()}
_KEPT: Final = frozenset(_NUMBERS[name] for name in ("f32", "i8", "i16", "i32", "i64", "f64", "mxfp4", "nvfp4"))
"""Types that are left as they are: small tensors, and experts that were trained in their four bits."""
_FALLBACK: Final = {"q2_K": "iq4_nl", "q3_K": "iq4_nl", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0"}
"""For rows that are no multiple of 256."""
_SMALL: Final = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight", "attn_rel_b.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """Types by role; `more` replaces the base in the layers that matter most, for values and the way down."""

    name: str
    base: str
    more: str | None = None
    value: str | None = None
    down: str | None = None
    joined: str | None = None
    attention_output: str | None = None
    output: str = "q6_K"


MIXES: Final = (
    Mix("BF16", "bf16", output="bf16"),
    Mix("Q8_0", "q8_0", output="q8_0"),
    Mix("Q6_K", "q6_K"),
    Mix("Q5_K_M", "q5_K", more="q6_K", joined="q6_K"),
    Mix("Q4_K_M", "q4_K", more="q6_K", joined="q5_K"),
    Mix("Q3_K_M", "q3_K", value="q4_K", down="q4_K", joined="q4_K", attention_output="q4_K"),
    Mix("Q2_K", "q2_K", value="q4_K", down="q3_K", attention_output="q3_K"),
)
"""The usual quantizations, the largest first."""


def requantized(parts: Sequence[GgufMetadata], mix: Mix) -> list[GgufMetadata]:
    """Give the headers that the model would have in another quantization; offsets are not renewed."""
    names = {tensor.name for part in parts for tensor in part.tensors}
    tied = "output.weight" not in names
    layers = 1 + max((_layer(name) for name in names), default=0)
    return [
        replace(part, tensors=tuple(_requantized(tensor, mix, layers, tied=tied) for tensor in part.tensors))
        for part in parts
    ]


def _requantized(tensor: Tensor, mix: Mix, layers: int, *, tied: bool) -> Tensor:
    small = len([size for size in tensor.shape if size > 1]) < 2 or tensor.name.endswith(_SMALL)  # noqa: PLR2004 a matrix
    if tensor.type in _KEPT or small or not tensor.name.endswith("weight"):
        return tensor
    name = _type_of(tensor.name, mix, layers, tied=tied)
    if tensor.shape[0] % ELEMENTS[_NUMBERS[name]].block:
        name = _FALLBACK.get(name, "f16")
    if tensor.shape[0] % ELEMENTS[_NUMBERS[name]].block:
        name = "f16"
    number = _NUMBERS[name]
    element = ELEMENTS[number]
    return tensor._replace(type=number, bytes=tensor.elements // element.block * element.bytes)


def _type_of(name: str, mix: Mix, layers: int, *, tied: bool) -> str:
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return mix.output
    layer = _layer(name)
    role = name.removesuffix(".weight").rpartition(".")[2]
    if mix.more and role in ("attn_v", "ffn_down", "ffn_down_exps") and _matters(layer, layers):
        return mix.more
    roles: Mapping[str, str | None] = {
        "attn_v": mix.value,
        "ffn_down": mix.down,
        "ffn_down_exps": mix.down,
        "attn_qkv": mix.joined,
        "attn_output": mix.attention_output,
    }
    return roles.get(role) or mix.base


def _matters(layer: int, layers: int) -> bool:
    """Tell whether a layer gets more bits: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2  # noqa: PLR2004 as upstream


def _layer(name: str) -> int:
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isascii() and number.isdigit() else 0


def type_of_file(parts: Sequence[GgufMetadata]) -> str:
    """Give the type that most of a model's bytes are in, for example q4_K."""
    sizes: dict[int, int] = {}
    for part in parts:
        for tensor in part.tensors:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
    most = type_numbered(max(sizes, key=lambda number: sizes[number])) if sizes else None
    return most.name if most else "unknown"


_FILE_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""llama_ftype (include/llama.h)."""


def file_type_name(file_type: int | None) -> str | None:
    """Name the quantization that a file says it has."""
    return _FILE_TYPES.get(file_type) if file_type is not None else None


def quantization(parts: Sequence[GgufMetadata], file_type: int | None) -> str:
    """Name the quantization: as the file does, else by the type that most of its bytes are in."""
    return _FILE_TYPES.get(-1 if file_type is None else file_type) or type_of_file(parts).upper()
