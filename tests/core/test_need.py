"""The memory estimate against figures of llama.cpp build 11434.

The figures (MiB) were taken with llama.cpp's own accounting (a load without allocation on a device of the RPC
backend, with the options that Paddock gives its servers); those of gemma3-270m agree with the log of a real load.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimate import table
from paddock.api.modeldeployment import CacheType, FlashAttention, Mode, ServingSpec
from paddock.api.report import HeaderSummary, TensorGroup
from paddock.core.gguf import read_gguf
from paddock.core.need import MIB, OVERHEAD, MemoryNeed, bytes_per_token, need, slot_context
from paddock.core.summary import summarize
from support import gguf_writer as writer
from support.gguf_writer import Model

GEMMA = HeaderSummary(
    architecture="gemma3",
    file_bytes=253_113_024,
    parameters=268_098_176,
    block_count=18,
    context_train=32_768,
    embedding_length=640,
    feed_forward=[2048],
    head_count=[4],
    head_count_kv=[1],
    key_length=256,
    value_length=256,
    sliding_window=512,
    sliding_layers=[layer % 6 != 5 for layer in range(18)],
    vocabulary=262_144,
    input_tensors=TensorGroup(bytes=178_257_920, count=1),
    layer_tensors=TensorGroup(bytes=68_327_424, count=234),
    output_tensors=TensorGroup(bytes=178_260_480, count=2),
)
"""gemma3-270m, Q4_K_M."""


def summary_of(model: Model) -> HeaderSummary:
    head = writer.header(model.metadata(), model.tensors())
    size = len(head) + writer.data_bytes(model.tensors())
    return summarize([read_gguf(lambda offset, length: head[offset : offset + length], size)])


def serving(**options: Any) -> ServingSpec:
    return ServingSpec.model_validate({"context_length": 8192, **options})


def on_device(summary: HeaderSummary, **options: Any) -> MemoryNeed:
    return need(summary, serving(**options), gpu=True, backend="RPC")


GEMMA_MEASURED: list[tuple[dict[str, Any], float, float, float]] = [
    ({"context_length": 1024}, 18.0, 19.02, 7.03),
    ({"context_length": 8192}, 39.0, 26.02, 14.03),
    ({"context_length": 32768}, 111.0, 50.02, 38.03),
    ({"parallel": 4}, 156.0, 26.02, 14.03),
    ({"context_length": 3000, "parallel": 3}, 72.0, 21.06, 9.05),
    ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 20.71875, 26.55, 14.56),
    ({"ubatch": 2048}, 61.5, 110.09, 62.11),
    ({"flash_attention": "Off"}, 39.0, 93.02, 25.02),
    ({"mode": "Embedding", "batch": 512}, 39.0, 526.03, 14.03),
]


@pytest.mark.parametrize(("options", "cache", "compute", "host"), GEMMA_MEASURED, ids=lambda value: str(value)[:60])
def test_gemma_as_measured(options: dict[str, Any], cache: float, compute: float, host: float) -> None:
    found = on_device(GEMMA, **options)
    assert found.device_weights / MIB == pytest.approx(235.16, abs=0.01)
    assert found.host_weights == 170 * MIB
    assert found.device_kv == cache * MIB
    assert compute <= found.device_compute / MIB
    assert host <= found.host_compute / MIB
    if "flash_attention" not in options:
        assert found.device_compute / MIB <= compute * (1.12 if "cache_type_k" in options else 1.03)


LLAMA_8B = Model("llama", 32, 4096, 32, 8, 128, 14_336, 128_256, type=writer.Q4_K)
LLAMA_70B = Model("llama", 80, 8192, 64, 8, 128, 28_672, 128_256, type=writer.Q4_K)
QWEN3_32B = Model("qwen3", 64, 5120, 64, 8, 128, 25_600, 151_936, type=writer.Q4_K)
GEMMA3_27B = Model(
    "gemma3", 62, 5376, 32, 16, 128, 21_504, 262_144, tied=True, extra={"gemma3.attention.sliding_window": 1024}
)
GPT_OSS = Model(
    "gpt-oss",
    24,
    2880,
    64,
    8,
    64,
    2880,
    201_088,
    extra={
        "gpt-oss.attention.sliding_window": 128,
        "gpt-oss.expert_used_count": 4,
        "gpt-oss.expert_feed_forward_length": 2880,
    },
)
DEEPSEEK_V3 = Model(
    "deepseek2",
    61,
    7168,
    128,
    1,
    576,
    18_432,
    129_280,
    extra={
        "deepseek2.attention.value_length": 512,
        "deepseek2.attention.key_length_mla": 192,
        "deepseek2.attention.value_length_mla": 128,
        "deepseek2.expert_used_count": 8,
        "deepseek2.expert_feed_forward_length": 2048,
    },
)

MEASURED: list[tuple[Model, dict[str, Any], float, float, float]] = [
    (LLAMA_8B, {}, 1024, 124.01, 1.01),
    (LLAMA_8B, {"context_length": 32_768}, 4096, 148.01, 1.01),
    (LLAMA_8B, {"parallel": 4}, 4096, 124.01, 1.01),
    (LLAMA_8B, {"ubatch": 2048}, 1024, 496.05, 1.01),
    (LLAMA_8B, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 544, 124.09, 1.15),
    (LLAMA_8B, {"flash_attention": "Off"}, 1024, 572.01, 1.15),
    (LLAMA_70B, {}, 2560, 240.01, 1.01),
    (QWEN3_32B, {}, 2048, 198.01, 1.11),
    (GEMMA3_27B, {}, 1264, 177.52, 1.11),
    (GEMMA3_27B, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 671.5, 188.18, 1.11),
    (GPT_OSS, {}, 210, 98.77, 2),
    (GPT_OSS, {"parallel": 4}, 840, 98.77, 2),
    (DEEPSEEK_V3, {}, 549, 400.01, 2),
    (DEEPSEEK_V3, {"ubatch": 2048}, 549, 1600.04, 2),
]


@pytest.mark.parametrize(("model", "options", "cache", "compute", "most"), MEASURED)
def test_published_shapes_as_measured(
    model: Model, options: dict[str, Any], cache: float, compute: float, most: float
) -> None:
    found = on_device(summary_of(model), **options)
    assert found.device_kv == cache * MIB
    assert compute <= found.device_compute / MIB <= compute * most


def test_recurrent_state_is_per_slot_and_independent_of_context() -> None:
    sizes: dict[str, writer.Value] = {"ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 16}
    model = Model("mamba", 4, extra={f"mamba.{key}": value for key, value in sizes.items()})
    summary = summary_of(model)
    one = on_device(summary).device_kv
    assert one == 4 * 4 * (3 * 4096 + 16 * 4096)
    assert on_device(summary, context_length=65_536).device_kv == one
    assert on_device(summary, parallel=3).device_kv == 3 * one


def test_checkpoints_are_kept_in_host_memory() -> None:
    for gpu in (True, False):
        without, found = (need(GEMMA, serving(parallel=2), gpu=gpu, checkpoints=count) for count in (0, 8))
        assert found.host_bytes - without.host_bytes == 8 * 2 * 15 * MIB
        assert found.device_bytes == without.device_bytes
    assert need(summary_of(LLAMA_8B), serving(), gpu=True, checkpoints=8).host_kv == 0  # it can be cut anywhere


def test_an_encoder_needs_no_cache() -> None:
    assert on_device(summary_of(Model("bert", tied=True)), mode="Embedding").device_kv == 0


def test_only_cuda_kernels_copy_a_quantized_cache() -> None:
    quantized = serving(cache_type_k="q8_0", cache_type_v="q8_0")
    summary = summary_of(LLAMA_8B)
    by_backend = {name: need(summary, quantized, gpu=True, backend=name).device_compute for name in ("CUDA", "SYCL")}
    copied = 2 * (128 + 128) * 8 * 8192
    assert copied <= by_backend["CUDA"] - by_backend["SYCL"] <= copied * 1.01
    assert need(summary, quantized, gpu=True).device_compute >= by_backend["CUDA"]


def test_heads_without_a_kernel_are_planned_without_flash_attention() -> None:
    odd = summary_of(Model(head_width=48))
    auto, off, on = (
        need(odd, serving(flash_attention=mode), gpu=True, backend="CUDA").device_compute
        for mode in (FlashAttention.AUTO, FlashAttention.OFF, FlashAttention.ON)
    )
    assert auto == off > on


def test_unknown_architectures_are_planned_with_more_than_the_graph() -> None:
    known, unknown = summary_of(LLAMA_8B), summary_of(replace(LLAMA_8B, architecture="unheard-of"))
    assert on_device(unknown).device_compute > 2 * on_device(known).device_compute
    assert on_device(unknown).device_kv == on_device(known).device_kv


@pytest.mark.parametrize("backend", [*OVERHEAD, "Unheard", None])
def test_margin_covers_context_padding_and_slack(backend: str | None) -> None:
    found = need(GEMMA, serving(), gpu=True, backend=backend)
    assert found.device_margin == 512 * MIB + 64 * MIB + 236 * 768


def test_on_the_cpu_everything_is_in_host_memory() -> None:
    found = need(GEMMA, serving(), gpu=False)
    assert found.device_bytes == 0
    assert found.host_weights == 178_257_920 + 68_327_424 + 178_260_480
    assert found.host_kv == 39 * MIB
    assert found.host_compute >= 27.3 * MIB  # measured
    status = found.to_status()
    assert (status.device_bytes, status.host_bytes, status.source) == (0, found.host_bytes, "Estimate")
    assert found.sentence().startswith("needs ")
    assert "of host memory (estimate: weights 406 MiB, KV cache 39 MiB, compute " in found.sentence()


def test_the_sentence_and_the_status_have_the_parts() -> None:
    found = on_device(GEMMA)
    assert found.sentence() == (
        "needs 877 MiB on the device (estimate: weights 236 MiB, KV cache 39 MiB, compute 27 MiB, margin 577 MiB)"
    )
    status = found.to_status()
    parts = status.weights_bytes + status.kv_cache_bytes + status.compute_bytes + status.margin_bytes
    assert parts == status.device_bytes == found.device_bytes
    assert "GiB on the device" in on_device(summary_of(LLAMA_8B)).sentence()


def test_slots_are_rounded_up() -> None:
    contexts = [slot_context(serving(context_length=length)) for length in (1, 256, 257, 3000)]
    assert contexts == [256, 256, 512, 3072]


SUMMARIES = [
    GEMMA,
    summary_of(GPT_OSS),
    summary_of(DEEPSEEK_V3),
    summary_of(Model("unheard-of", head_width=48, extra={"unheard-of.attention.indexer.key_length": 32})),
    summary_of(Model("falcon-h1", extra={"falcon-h1.ssm.inner_size": 64, "falcon-h1.ssm.state_size": 8})),
    summary_of(Model("bert", tied=True)),
]
OPTIONS = st.fixed_dictionaries(
    {
        "context_length": st.integers(1, 300_000),
        "parallel": st.integers(1, 128),
        "batch": st.integers(1, 8192),
        "ubatch": st.integers(1, 4096),
        "cache_type_k": st.sampled_from(CacheType),
        "cache_type_v": st.sampled_from(CacheType),
        "flash_attention": st.sampled_from(FlashAttention),
        "mode": st.sampled_from(Mode),
    }
)
PARTS = ("device_weights", "device_kv", "device_compute", "device_margin", "host_weights", "host_kv", "host_compute")


@given(st.sampled_from(SUMMARIES), OPTIONS, st.booleans(), st.sampled_from(["CUDA", "Vulkan", None]))
def test_more_never_needs_less(summary: HeaderSummary, options: dict[str, Any], gpu: bool, backend: str | None) -> None:
    def estimate(**changes: int) -> MemoryNeed:
        return need(summary, ServingSpec(**{**options, **changes}), gpu=gpu, backend=backend)

    base = estimate()
    assert all(getattr(base, part) >= 0 for part in PARTS)
    for option in ("context_length", "parallel", "ubatch", "batch"):
        more = estimate(**{option: options[option] * 2})
        assert [part for part in PARTS if getattr(more, part) < getattr(base, part)] == []


def test_wider_cache_types_need_no_less() -> None:
    order = ("q4_0", "q4_1", "q5_1", "q8_0", "f16", "f32")
    sizes = [on_device(GEMMA, cache_type_k=kind, cache_type_v=kind).device_kv for kind in order]
    assert all(less < more for less, more in pairwise(sizes))


def test_absurd_headers_stay_within_the_api_s_integers() -> None:
    absurd = GEMMA.model_copy(update={"recurrent_state_bytes": 2**100, "embedding_length": 2**62, "recurrent": True})
    for gpu in (True, False):
        found = need(absurd, serving(parallel=256), gpu=gpu)
        assert max(found.device_bytes, found.host_bytes) < 2**63


def test_a_token_reads_all_weights_but_those_of_experts_that_it_does_not_use() -> None:
    dense = need(GEMMA, serving(), gpu=True)
    assert dense.token_bytes == dense.device_weights
    assert dense.to_status().bytes_per_token == dense.token_bytes
    assert need(GEMMA, serving(), gpu=False).to_status().bytes_per_token is None
    mixture = table.summary("mixtral-8x7b")
    assert 0 < bytes_per_token(mixture) < mixture.layer_tensors.bytes // 2
    older = mixture.model_copy(update={"token_bytes": 0})
    assert bytes_per_token(older) == mixture.layer_tensors.bytes + mixture.output_tensors.bytes
