"""Models over several devices, and tensors elsewhere by name: what is where adds up to what there is."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimate.corpus import SHAPES, metadata, tensors
from paddock.core.division import DivisionError, Estimator
from paddock.core.estimate import Options
from paddock.core.gguf import GgufMetadata, Tensor
from paddock.core.homes import HOST, homes
from paddock.core.summary import summarize

NAMES = ["llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b", "gemma-3-27b", "gpt-oss-20b"]
KINDS = ("weights", "kvCache")


@cache
def estimator(name: str) -> Estimator:
    plain = {key: value for key, value in metadata(SHAPES[name]).items() if isinstance(value, (int, str, float, bool))}
    rows = tuple(Tensor(spec.name, spec.shape, spec.type, 0, spec.bytes) for spec in tensors(SHAPES[name]))
    parts = [GgufMetadata(3, plain, rows, 32, 0, 0)]
    return Estimator(parts, summarize(parts))


def layers(name: str) -> int:
    return estimator(name).summary.block_count


def test_layers_go_to_devices_by_shares_from_the_first_offloaded_on() -> None:
    assert homes(4, 5, ()) == [0] * 5
    assert homes(4, 5, (1, 1)) == [0, 0, 0, 1, 1]
    assert homes(4, 3, (1, 1)) == [HOST, HOST, 0, 0, 1]
    assert homes(4, 0, (1, 1)) == [HOST] * 5
    assert homes(4, 5, (0, 1)) == [1] * 5
    assert homes(4, 5, (1, 0, 1)) == [0, 0, 0, 2, 2]
    assert homes(8, 9, (2, 1)) == [0] * 6 + [1] * 3
    assert homes(32, 33, (3, 1)) == [0] * 25 + [1] * 8


SPLITS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any).map(lambda found: tuple(map(float, found)))


@given(
    st.sampled_from(NAMES), SPLITS, st.one_of(st.none(), st.integers(0, 40)), st.sampled_from([1, 4]), st.integers(0, 9)
)
def test_weights_and_cache_add_up_over_any_split(
    name: str, shares: tuple[float, ...], on_device: int | None, slots: int, experts: int
) -> None:
    """The rotary factors of some models are once on each device; those of these shapes are not in the file."""
    whole = Options(context=8192, parallel=slots, gpu_layers=on_device, cpu_moe=experts)
    one, many = estimator(name)(whole), estimator(name)(replace(whole, shares=shares))
    for kind in KINDS:
        assert many.sum("device", kind) == one.sum("device", kind)
        assert many.sum("host", kind) == one.sum("host", kind)
        assert sum(many.sum("device", kind, number) for number in range(len(shares))) == one.sum("device", kind)
    assert sum(many.devices) == many.device_total
    assert many.sum("device", "compute") >= one.sum("device", "compute")
    assert all(part.bytes > 0 for part in many.addends)
    empty = [number for number, share in enumerate(shares) if not share]
    assert not any(part.device in empty and part.place == "device" for part in many.addends)


@given(
    st.sampled_from(NAMES[:3]), st.lists(st.integers(1, 9), min_size=2, max_size=4), st.sampled_from(["row", "tensor"])
)
def test_what_is_divided_within_tensors_is_never_less_than_the_whole(name: str, shares: list[int], mode: Any) -> None:
    options = Options(context=8192, shares=tuple(map(float, shares)), split_mode=mode, backend="sycl")
    many, one = estimator(name)(options), estimator(name)(replace(options, shares=()))
    for kind in KINDS:
        assert many.sum("device", kind) >= one.sum("device", kind)
        assert all(many.sum("device", kind, number) <= one.sum("device", kind) for number in range(len(shares)))
    assert many.confidence == "bound"


@given(st.permutations([5.0, 3.0, 2.0]))
def test_the_order_of_shares_decides_which_layers_and_not_how_many_bytes(shares: list[float]) -> None:
    found = estimator("llama-3.1-8b")(Options(context=8192, shares=tuple(shares)))
    sizes = {share: found.sum("device", "kvCache", number) for number, share in enumerate(shares)}
    assert sizes[5.0] > sizes[3.0] > sizes[2.0] > 0


def test_tensors_go_where_their_first_pattern_says() -> None:
    name, options = "mixtral-8x7b", Options(context=4096)
    whole = estimator(name)(options)
    experts = estimator(name)(replace(options, overrides=(("_exps", "CPU"),)))
    every = estimator(name)(replace(options, cpu_moe=layers(name), overrides=(("nothing-is-called-so", "CPU"),)))
    moved = whole.sum("device", "weights") - experts.sum("device", "weights")
    assert moved > whole.sum("device", "weights") // 2
    assert experts.sum("host", "weights") - whole.sum("host", "weights") == moved
    assert every.sum("device", "weights") == experts.sum("device", "weights")
    assert estimator(name)(replace(options, cpu_moe=layers(name))).sum("device", "weights") == every.sum(
        "device", "weights"
    )
    kept = (("blk\\.0\\.", "RPC0"), ("_exps", "CPU"))
    first = estimator(name)(replace(options, overrides=kept)).sum("device", "weights")
    layer = moved // layers(name)
    assert first - experts.sum("device", "weights") == layer


def test_a_pattern_may_move_inputs_and_the_output_and_between_devices() -> None:
    options = Options(context=4096, shares=(1, 1))
    plain = estimator("llama-3.1-8b")(options)
    moved = estimator("llama-3.1-8b")(replace(options, overrides=(("^token_embd", "CUDA1"),)))
    table = plain.sum("host", "weights")
    assert moved.sum("host", "weights") == 0
    assert moved.sum("device", "weights", 1) - plain.sum("device", "weights", 1) == table
    tied = replace(options, overrides=(("^token_embd", "CPU"),), shares=())
    before, after = (estimator("llama-3.2-1b")(one) for one in (replace(tied, overrides=()), tied))
    assert after.sum("host", "weights") == before.sum("host", "weights")  # once, as input and output
    assert before.sum("device", "weights") - after.sum("device", "weights") == before.sum("host", "weights")


def test_a_backend_s_devices_each_have_its_overhead_and_what_it_borrows() -> None:
    options = Options(context=8192, shares=(1, 1), backend="cuda")
    found = estimator("llama-3.1-8b")(options)
    shares = [one.device for one in found.addends if one.name == "driver, kernels, pools"]
    assert shares == [0, 1]
    assert not any(one.name == "host weights in use" for one in found.addends)
    partial = estimator("llama-3.1-8b")(replace(options, gpu_layers=20))
    lent = next(one.bytes for one in partial.addends if one.name == "host weights in use")
    assert lent > 100_000_000
    generic = estimator("llama-3.1-8b")(replace(options, gpu_layers=20, backend="generic"))
    assert not any(one.name == "host weights in use" for one in generic.addends)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(shares=(1.0,) * 17), "at most 16 devices"),
        (Options(shares=(0.0, 0.0)), "not all 0"),
        (Options(shares=(1.0, -1.0)), "numbers from 0 on"),
        (Options(shares=(1.0, 1.0), split_mode="row", backend="cuda"), "only SYCL divides by rows"),
        (Options(shares=(1.0, 1.0), split_mode="tensor", flash_attention="off"), "needs FlashAttention"),
        (Options(overrides=(("(", "CPU"),)), "'(' is no pattern"),
        (Options(overrides=(("x", "CUDA1"),)), "none of the 1 devices"),
        (Options(overrides=(("x", "CUDA"),)), "give CPU, or a name that ends in a number"),
    ],
)
def test_what_cannot_be_is_told(options: Options, words: str) -> None:
    with pytest.raises(DivisionError, match=words.replace("(", "\\(")):
        estimator("llama-3.1-8b")(options)
