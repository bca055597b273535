"""Other quantizations of the same model: their sizes are those of published files."""

import pytest

from estimate.models import check_mixes, parts, size
from paddock.core.ggml import ELEMENTS
from paddock.core.gguf import read_gguf
from paddock.core.quantize import MIXES, quantization, requantized, type_of_file
from support.gguf_writer import Spec, data_bytes, header

PUBLISHED = {
    "llama-3.1-8b": {"BF16": 16.07, "Q8_0": 8.54, "Q6_K": 6.60, "Q5_K_M": 5.73, "Q4_K_M": 4.92, "Q3_K_M": 4.02},
    "llama-3.1-70b": {"Q8_0": 74.98, "Q6_K": 57.89, "Q5_K_M": 49.95, "Q4_K_M": 42.52, "Q3_K_M": 34.27, "Q2_K": 26.38},
}
"""Sizes of files on the web, in 10^9 bytes, tokens included."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_of_published_files(name: str) -> None:
    for mix in MIXES:
        if mix.name in PUBLISHED[name]:
            expected = PUBLISHED[name][mix.name] * 10**9
            assert size(requantized(parts(name), mix)) == pytest.approx(expected, rel=0.02), mix.name


FEW = ("llama-3.2-1b", "gemma-3-1b", "gpt-oss-20b")
"""Tied and untied, with and without experts; tests/estimate asks the same of every shape."""


@pytest.mark.parametrize("name", FEW)
def test_the_mixes_fall_in_size_and_stay_readable(name: str) -> None:
    check_mixes(parts(name))


def test_rows_that_are_no_multiple_of_a_block_get_another_type() -> None:
    rows = [Spec("blk.0.ffn_up.weight", (640, 8), 1), Spec("blk.0.ffn_gate.weight", (33, 8), 1)]
    head = header({"general.architecture": "llama"}, rows)
    size_ = len(head) + data_bytes(rows)
    model = [read_gguf(lambda offset, length: head[offset : offset + length], size_)]
    mix = next(one for one in MIXES if one.name == "Q4_K_M")
    assert [ELEMENTS[tensor.type].name for tensor in requantized(model, mix)[0].tensors] == ["q5_0", "f16"]


def test_small_tensors_and_experts_of_four_bits_are_left_alone() -> None:
    rows = [
        Spec("blk.0.attn_norm.weight", (256,), 0),
        Spec("blk.0.ffn_gate_inp.weight", (256, 8), 1),
        Spec("blk.0.ffn_up_exps.weight", (256, 8, 4), 39),
        Spec("blk.0.attn_q.bias", (256,), 1),
    ]
    head = header({"general.architecture": "llama"}, rows)
    model = [read_gguf(lambda offset, length: head[offset : offset + length], len(head) + data_bytes(rows))]
    for mix in MIXES:
        assert requantized(model, mix) == model


def test_the_name_of_a_quantization() -> None:
    model = parts("llama-3.1-8b")
    assert quantization(model, 15) == "Q4_K_M"
    assert quantization(model, 999) == "Q4_K"
    assert quantization(model, None) == "Q4_K"
    assert type_of_file([]) == "unknown"
