"""Properties of the estimate that hold for any model, and of the allocator that it replays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.report import HeaderSummary
from paddock.core.allocator import Allocator, aligned
from paddock.core.estimate import BUILD, Addend, MemoryEstimate, Options, estimate
from paddock.core.gguf import read_gguf
from paddock.core.sizes import evaluate
from paddock.core.summary import summarize
from paddock.core.templates import templates
from support import gguf_writer as writer
from support.gguf_writer import Model

MODEL = Model(layers=6)


def summary_of(model: Model) -> HeaderSummary:
    head = writer.header(model.metadata(), model.tensors())
    size = len(head) + writer.data_bytes(model.tensors())
    return summarize([read_gguf(lambda offset, length: head[offset : offset + length], size)])


SUMMARY = summary_of(MODEL)

OPTIONS = st.builds(
    Options,
    context=st.integers(256, 100_000),
    parallel=st.integers(1, 8),
    kv_unified=st.booleans(),
    cache_type_k=st.sampled_from(["f16", "q8_0"]),
    batch=st.integers(64, 2048),
    ubatch=st.integers(64, 2048),
    flash_attention=st.sampled_from(["on", "off", "auto"]),
    embeddings=st.booleans(),
    gpu_layers=st.sampled_from([None, 0, 3]),
    backend=st.sampled_from(["generic", "cuda", "vulkan", "unheard-of"]),
)


@given(OPTIONS)
def test_totals_are_the_sums_of_addends_and_nothing_is_negative(options: Options) -> None:
    found = estimate(SUMMARY, options)
    assert all(one.bytes > 0 for one in found.addends)
    assert found.device_total + found.host_total == sum(one.bytes for one in found.addends)
    assert found.overhead == sum(one.bytes for one in found.addends if one.kind == "overhead")
    assert (found.confidence == "bound") == any(
        one.source == "bound" and one.kind != "overhead" for one in found.addends
    )
    if options.gpu_layers == 0:
        assert found.device_total == 0


@given(OPTIONS, st.sampled_from(["context", "parallel", "ubatch"]))
def test_more_context_slots_and_tokens_never_need_less_cache(options: Options, what: str) -> None:
    more = replace(options, **{what: getattr(options, what) * 2})
    if what == "parallel":  # the context is the total over slots
        more = replace(more, context=options.context * 2)
    for place in ("device", "host"):
        assert cache(estimate(SUMMARY, more), place) >= cache(estimate(SUMMARY, options), place)


def cache(found: MemoryEstimate, place: str) -> int:
    return sum(one.bytes for one in found.addends if one.place == place and one.kind == "kvCache")


def test_an_unknown_architecture_is_a_bound() -> None:
    found = estimate(summary_of(replace(MODEL, architecture="unheard-of")), Options(context=4096))
    assert found.confidence == "bound"
    known = estimate(SUMMARY, Options(context=4096))
    assert known.confidence == "exact"
    assert found.sum("device", "compute") >= known.sum("device", "compute")


def test_real_backends_never_need_less_than_the_generic_device() -> None:
    generic = estimate(SUMMARY, Options(context=8192)).device_total
    for backend in ("cuda", "hip", "vulkan", "sycl", "metal", "unheard-of"):
        assert estimate(SUMMARY, Options(context=8192, backend=backend)).device_total > generic


def test_logits_and_the_process_are_overhead_in_host_memory() -> None:
    found = estimate(SUMMARY, Options(context=4096, parallel=4))
    logits = next(one for one in found.addends if one.name == "logits of the answers")
    assert logits == Addend(logits.name, "host", "overhead", 4 * 4 * SUMMARY.vocabulary, "exact")


def test_the_templates_are_of_the_build_that_the_estimate_is_of() -> None:
    assert templates().build == BUILD


def test_the_smallest_free_range_is_taken_before_the_buffer_grows() -> None:
    one = Allocator()
    blocks = [one.take(size) for size in (64, 32, 96, 32, 32)]
    assert blocks == [0, 64, 96, 192, 224]
    one.give(0, 64)
    one.give(96, 96)
    assert one.take(64) == 0
    assert one.take(96) == 96
    assert one.take(32) == 256
    assert one.peak == 288


def test_ranges_are_joined_when_they_are_given_back() -> None:
    one = Allocator()
    first, second, third, _ = (one.take(64) for _ in range(4))
    one.give(first, 64)
    one.give(third, 64)
    one.give(second, 64)
    assert one.take(192) == 0
    assert one.peak == 256


def test_an_allocator_goes_back_to_a_state() -> None:
    one = Allocator()
    one.take(64)
    state = one.state()
    one.take(64)
    one.restore(state)
    assert one.take(32) == 64
    assert one.peak == 128


@pytest.mark.parametrize(
    ("expression", "value"),
    [("T", 7), ("12", 12), ("*:T:E", 70), ("+:*:T:E:*:2:E", 90), ("-:T:E", 0), ("/:E:T", 1), ("/:E:0", 0)],
)
def test_expressions(expression: str, value: int) -> None:
    assert evaluate(expression, {"T": 7, "E": 10}) == value


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    assert [aligned(size) for size in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert aligned(33, 128) == 128
