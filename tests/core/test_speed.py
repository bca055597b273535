"""Ceilings of speed: bytes that a token reads, over bandwidth."""

import pytest

from estimate.corpus import SHAPES, metadata, tensors
from paddock.core.gguf import GgufMetadata, Tensor
from paddock.core.speed import Bandwidth, Reading, ceiling, weights_read
from support.gguf_writer import Spec, Value

GB = 10**9
WIDE = Bandwidth(1000 * GB, 80 * GB)


def model(specs: list[Spec], values: dict[str, Value]) -> list[GgufMetadata]:
    plain = {key: value for key, value in values.items() if isinstance(value, (int, str, float, bool))}
    rows = tuple(Tensor(spec.name, spec.shape, spec.type, 0, spec.bytes) for spec in specs)
    return [GgufMetadata(3, plain, rows, 32, 0, 0)]


def shape(name: str) -> list[GgufMetadata]:
    return model(list(tensors(SHAPES[name])), dict(metadata(SHAPES[name])))


def size(name: str, *, without: tuple[str, ...] = ()) -> int:
    return sum(spec.bytes for spec in tensors(SHAPES[name]) if not spec.name.startswith(without))


def test_a_dense_model_reads_all_but_its_embedding_table() -> None:
    found = weights_read(shape("llama-3.1-8b"), layers=32)
    assert found == Reading(size("llama-3.1-8b", without=("token_embd",)), 0)


def test_a_tied_embedding_is_read_as_the_output() -> None:
    assert weights_read(shape("llama-3.2-1b"), layers=16) == Reading(size("llama-3.2-1b"), 0)


def test_of_experts_only_those_that_compute_are_read() -> None:
    """Two of eight: a quarter of their bytes."""
    rows = tensors(SHAPES["mixtral-8x7b"])
    experts = sum(spec.bytes for spec in rows if "_exps." in spec.name)
    rest = sum(spec.bytes for spec in rows if "_exps." not in spec.name and not spec.name.startswith("token_embd"))
    assert weights_read(shape("mixtral-8x7b"), layers=32).device == pytest.approx(rest + experts / 4, abs=200)


def test_layers_are_offloaded_from_the_end_with_the_output_first() -> None:
    parts = shape("llama-3.1-8b")
    whole = weights_read(parts, layers=32)
    assert weights_read(parts, layers=32, gpu_layers=33) == whole
    assert weights_read(parts, layers=32, gpu_layers=0) == Reading(0, whole.device)
    some = weights_read(parts, layers=32, gpu_layers=5)
    assert some.device + some.host == whole.device
    layer = sum(spec.bytes for spec in tensors(SHAPES["llama-3.1-8b"]) if spec.name.startswith("blk.31."))
    output = sum(spec.bytes for spec in tensors(SHAPES["llama-3.1-8b"]) if spec.name.startswith("output"))
    assert weights_read(parts, layers=32, gpu_layers=2).device == layer + output


def test_experts_of_some_layers_are_read_on_the_host() -> None:
    parts = shape("mixtral-8x7b")
    whole, some = weights_read(parts, layers=32), weights_read(parts, layers=32, cpu_moe=8)
    assert some.device + some.host == whole.device
    assert 0 < some.host < whole.device // 4


def test_layers_that_predict_further_tokens_are_not_read() -> None:
    rows = [Spec("blk.0.w.weight", (10,)), Spec("blk.1.w.weight", (10,)), Spec("output.weight", (10,))]
    values: dict[str, Value] = {"general.architecture": "x", "x.nextn_predict_layers": 1}
    assert weights_read(model(rows, values), layers=2) == Reading(80, 0)


def test_nonsense_in_the_header_does_no_harm() -> None:
    rows = [Spec("blk.0.ffn_up_exps.weight", (10,)), Spec("output.weight", (10,)), Spec("blk.x.weight", (10,))]
    for used, count in ((3, 0), (9, 2), (-1, 4), ("a", 4)):
        values: dict[str, Value] = {"general.architecture": "x", "x.expert_used_count": used, "x.expert_count": count}
        assert weights_read(model(rows, values), layers=1) == Reading(120, 0)


@pytest.mark.parametrize(
    ("gigabytes", "bandwidth", "cards", "split", "expected"),
    [
        (74.9, 1792, 1, "layer", 23.9),
        (74.9, 1792, 2, "layer", 23.9),
        (74.9, 1792, 2, "tensor", 47.9),
        (42.5, 1344, 4, "tensor", 126.5),
    ],
)
def test_cards_take_turns_in_layers_and_read_at_once_in_tensors(
    gigabytes: float, bandwidth: int, cards: int, split: str, expected: float
) -> None:
    way = Bandwidth(bandwidth * GB, 80 * GB)
    found = ceiling(Reading(int(gigabytes * GB), 0), way, cards=cards, split="tensor" if split == "tensor" else "layer")
    assert found == pytest.approx(expected, abs=0.1)


def test_a_part_on_the_host_takes_most_of_the_time() -> None:
    """22 GB at 1000 GB/s and 18 GB at 80 GB/s: 0.247 s a token."""
    assert ceiling(Reading(22 * GB, 18 * GB), WIDE) == pytest.approx(1 / 0.247)


def test_the_cache_is_read_too() -> None:
    assert ceiling(Reading(5 * GB, 0), WIDE, cache=Reading(5 * GB, 0)) == pytest.approx(100)
    assert ceiling(Reading(0, 0), WIDE) == 0
