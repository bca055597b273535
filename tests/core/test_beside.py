"""What a server holds beside its model: projector, adapters, draft model, the model's own head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimate import table
from paddock.core.beside import Beside, Draft, adapter, projector
from paddock.core.division import Estimator
from paddock.core.estimate import MemoryEstimate, Options, estimate
from paddock.core.gguf import GgufError, GgufMetadata, Tensor, read_gguf
from paddock.core.summary import loaded, summarize
from support import gguf_writer as writer
from support.gguf_writer import Model, Spec, Value

OPTIONS = Options(context=4096)


def header_of(values: dict[str, Value], specs: list[Spec]) -> GgufMetadata:
    plain = {key: value for key, value in values.items() if isinstance(value, (int, str, float, bool))}
    return GgufMetadata(3, plain, tuple(Tensor(one.name, one.shape, one.type, 0, one.bytes) for one in specs), 32, 0, 0)


def model(shape: Model) -> list[GgufMetadata]:
    head = writer.header(shape.metadata(), shape.tensors())
    size = len(head) + writer.data_bytes(shape.tensors())
    return [read_gguf(lambda offset, length: head[offset : offset + length], size)]


def estimator(shape: Model, beside: Beside) -> Estimator:
    return Estimator(model(shape), summarize(model(shape)), beside)


def added(found: MemoryEstimate, shape: Model, options: Options) -> dict[tuple[str, str], int]:
    plain = estimate(summarize(model(shape)), options)
    kinds = ("weights", "kvCache", "compute", "overhead")
    return {
        (place, kind): found.sum(place, kind) - plain.sum(place, kind)  # type: ignore[arg-type]
        for place in ("device", "host")
        for kind in kinds
    }


VISION: dict[str, Value] = {
    "general.architecture": "clip",
    "general.type": "mmproj",
    "clip.projector_type": "gemma3",
    "clip.vision.image_size": 896,
    "clip.vision.patch_size": 14,
    "clip.vision.embedding_length": 1152,
    "clip.vision.feed_forward_length": 4304,
    "clip.vision.attention.head_count": 16,
    "clip.vision.projection_dim": 2560,
}
TENSORS = [Spec("v.patch_embd.weight", (14, 14, 3, 1152), 1), Spec("v.blk.0.attn_q.weight", (1152, 1152), 1)]


def test_a_projector_is_its_tensors_and_a_bound_of_its_graph() -> None:
    shape = Model()
    found = estimator(shape, Beside(header_of(VISION, TENSORS)))(OPTIONS)
    more = added(found, shape, OPTIONS)
    assert more["device", "weights"] == sum(-(-one.bytes // 32) * 32 for one in TENSORS)
    assert more["device", "kvCache"] == more["host", "weights"] == 0
    assert 100 * 2**20 < more["device", "compute"] < 3 * 2**30
    assert found.confidence == "bound"
    assert [one.source for one in found.addends if one.name == "projector"] == ["exact"]
    cuda = replace(OPTIONS, backend="vulkan")
    padding = [one.name for one in estimator(shape, Beside(header_of(VISION, TENSORS)))(cuda).addends]
    assert "alignment of tensors of the projector" in padding


def test_images_of_any_size_and_heads_without_a_kernel_need_more() -> None:
    def compute(**changes: Value) -> int:
        return sum(
            one.bytes
            for one in projector(header_of({**VISION, **changes}, TENSORS), OPTIONS)
            if one.place == "device" and one.kind == "compute"
        )

    small: dict[str, Value] = {"clip.vision.image_size": 448}
    assert compute(**{"clip.projector_type": "qwen2.5vl_merger"}, **small) > compute(**small)
    assert compute(**{"clip.vision.attention.head_count": 24}) > compute()
    assert compute(**{"clip.vision.image_size": 448}) < compute()
    assert compute(**{"clip.vision.embedding_length": 0}) == 0
    sound: dict[str, Value] = {"clip.audio.embedding_length": 1280, "clip.audio.feed_forward_length": 5120}
    assert compute(**{"clip.vision.embedding_length": 0}, **sound) > 0


def lora(*names: str, rank: int = 8) -> GgufMetadata:
    specs = []
    for name in names:
        specs += [Spec(f"{name}.lora_a", (64, rank)), Spec(f"{name}.lora_b", (rank, 128))]
    return header_of({"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}, specs)


def test_an_adapter_is_beside_the_tensors_that_it_adapts() -> None:
    shape, one = Model(), lora("blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "token_embd.weight")
    pair = 4 * (64 * 8 + 8 * 128)
    whole = added(estimator(shape, Beside(adapters=(one,)))(OPTIONS), shape, OPTIONS)
    assert (whole["device", "weights"], whole["host", "weights"]) == (2 * pair, pair)
    partial = replace(OPTIONS, gpu_layers=2)
    split = added(estimator(shape, Beside(adapters=(one,)))(partial), shape, partial)
    assert (split["device", "weights"], split["host", "weights"]) == (pair, 2 * pair)
    two = added(estimator(shape, Beside(adapters=(one, one)))(OPTIONS), shape, OPTIONS)
    assert two["device", "weights"] == 4 * pair


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lora("blk.9.ffn_up.weight"), "for another model: this one has no blk.9.ffn_up.weight"),
        (header_of(VISION, TENSORS), "no LoRA adapter"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_told(wrong: GgufMetadata, words: str) -> None:
    with pytest.raises(GgufError, match=words):
        adapter(wrong, "adapter", OPTIONS, loaded(model(Model())))


def test_what_is_no_projector_is_told() -> None:
    with pytest.raises(GgufError, match="holds no projector"):
        projector(lora("x"), OPTIONS)


def test_a_draft_model_is_estimated_like_any_other_with_its_target_s_context() -> None:
    shape, small = Model(layers=4, vocabulary=512), Model(layers=1)
    options = replace(OPTIONS, parallel=2, cache_type_k="q8_0", cache_type_v="q8_0", drafted=3)
    parts = model(small)
    found = estimator(shape, Beside(draft=Draft(parts, summarize(parts))))(options)
    more = added(found, shape, options)
    alone = estimate(summarize(parts), Options(context=4096, parallel=2))
    for kind in ("weights", "kvCache", "compute"):
        assert more["device", kind] == alone.sum("device", kind)
    assert {one.name for one in found.addends if one.name.startswith("draft model: ")} >= {"draft model: weights"}
    undrafted = estimate(summarize(model(shape)), replace(options, drafted=0))
    logits = [
        sum(one.bytes for one in each.addends if one.name == "logits of the answers") for each in (found, undrafted)
    ]
    assert logits == [4 * 512 * 2 * 4, 4 * 512 * 2]


def test_a_head_that_predicts_is_loaded_for_drafting_alone() -> None:
    shape = Model(layers=3, extra={"llama.nextn_predict_layers": 1})
    options = replace(OPTIONS, mtp=True, drafted=3)
    found = estimator(shape, Beside())(options)
    parts = [one for one in found.addends if one.name.startswith("MTP head")]
    assert {one.kind for one in parts} == {"weights", "kvCache", "compute"}
    assert summarize(model(shape)).predicting_layers == 1
    layer = estimate(summarize(model(Model(layers=3))), OPTIONS).sum("device", "weights")
    assert found.sum("device", "weights") == layer  # with its head, as much as one without that skips nothing
    assert added(found, shape, options)["device", "kvCache"] == 4096 * 2 * 2 * 2 * 16
    with pytest.raises(GgufError, match="no layers that predict"):
        estimator(Model(), Beside())(replace(OPTIONS, mtp=True, drafted=3))


def test_states_are_kept_for_each_drafted_token_where_they_can_be_taken_back() -> None:
    name = next(one for one in table.architectures() if one.startswith("lfm2-"))
    summary = table.summary(name)
    plain, drafting = (estimate(summary, Options(context=4096, drafted=3, mtp=flag)) for flag in (False, True))
    states = [sum(one.bytes for one in each.addends if one.name == "recurrent state") for each in (plain, drafting)]
    assert states[1] == 4 * states[0] > 0
