"""The summary of a header: tensor groups, layers with caches, windows, latent attention, recurrent state, parts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.report import HeaderSummary
from paddock.core.gguf import GgufError, GgufMetadata, read_gguf
from paddock.core.summary import summarize
from support import gguf_writer as writer
from support.gguf_writer import Model, Spec, Value


def parse(metadata: dict[str, Value], tensors: list[Spec]) -> GgufMetadata:
    head = writer.header(metadata, tensors)
    return read_gguf(lambda offset, length: head[offset : offset + length], len(head) + writer.data_bytes(tensors))


def summary_of(model: Model, *more: Spec) -> HeaderSummary:
    return summarize([parse(model.metadata(), model.tensors() + list(more))])


def shaped(architecture: str, layers: int = 6, /, **keys: Value) -> HeaderSummary:
    """Summarize a model with these keys, written with _ for the dots."""
    extra = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return summary_of(Model(architecture, layers, extra=extra))


def test_plain_model() -> None:
    model = Model()
    found = summary_of(model)
    assert (found.architecture, found.name, found.files) == ("llama", "Test llama", 1)
    assert (found.block_count, found.context_train, found.embedding_length) == (2, 2048, 64)
    assert (found.head_count, found.head_count_kv, found.feed_forward) == ([4], [2], [128])
    assert (found.key_length, found.value_length, found.vocabulary) == (16, 16, 96)
    assert (found.sliding_window, found.sliding_layers, found.recurrent) == (None, [], False)
    assert found.input_tensors.bytes == 96 * 64 * 2
    assert found.output_tensors.bytes == 96 * 64 * 2 + 64 * 4
    layer = 2 * 64 * 4 + 2 * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128)
    assert (found.layer_tensors.bytes, found.layer_tensors.count) == (2 * layer, 18)
    assert found.parameters == sum(spec.bytes // (2 if spec.type == writer.F16 else 4) for spec in model.tensors())


def test_tied_embedding_is_counted_on_both_sides() -> None:
    found = summary_of(Model(tied=True))
    assert (found.input_tensors.count, found.output_tensors.count) == (1, 2)
    assert found.output_tensors.bytes == found.input_tensors.bytes + 64 * 4


def test_an_encoder_has_no_tied_output_and_no_cache() -> None:
    found = summary_of(Model("bert", tied=True))
    assert found.output_tensors.count == 1
    assert found.head_count_kv == [0]


def test_further_inputs_stay_with_the_input_and_other_tensors_go_to_the_output() -> None:
    found = summary_of(Model(), Spec("per_layer_token_embd.weight", (8, 96)), Spec("rope_freqs.weight", (8,)))
    assert (found.input_tensors.count, found.output_tensors.count) == (2, 3)


def test_layers_that_only_predict_further_tokens_are_not_loaded() -> None:
    whole, trunk = shaped("glm4moe"), shaped("glm4moe", nextn_predict_layers=1)
    assert trunk.layer_tensors.count == whole.layer_tensors.count * 5 // 6
    assert trunk.head_count_kv == [2, 2, 2, 2, 2, 0]


def test_absent_sizes_have_llama_cpps_defaults() -> None:
    metadata = Model().metadata()
    for key in ("head_count_kv", "key_length", "value_length"):
        del metadata[f"llama.attention.{key}"]
    found = summarize([parse(metadata, Model().tensors())])
    assert (found.head_count_kv, found.key_length, found.value_length) == ([4], 16, 16)


def test_heads_per_layer() -> None:
    found = shaped("openelm", 3, attention__head_count=[4, 8, 8], attention__head_count_kv=[1, 2, 2])
    assert (found.head_count, found.head_count_kv) == ([4, 8, 8], [1, 2, 2])
    short = shaped("openelm", 3, attention__head_count_kv=[1, 4])
    assert short.head_count_kv == [1, 4, 4]  # what is missing is taken to be the largest


WINDOWED: list[tuple[str, dict[str, Value], list[int]]] = [
    ("gemma2", {}, [1, 0, 1, 0, 1, 0]),  # has a window by default
    ("gemma3", {"attention__sliding_window": 512}, [1, 1, 1, 1, 1, 0]),
    ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 3}, [1, 1, 0, 1, 1, 0]),
    ("gemma3", {}, []),
    ("gpt-oss", {"attention__sliding_window": 128}, [1, 0, 1, 0, 1, 0]),
    ("cohere2moe", {"attention__sliding_window": 64}, [0, 1, 1, 1, 0, 1]),
    (
        "gemma4",
        {
            "attention__sliding_window": 64,
            "attention__sliding_window_pattern": [True, True, False, True, True, False],
        },
        [1, 1, 0, 1, 1, 0],
    ),
    ("exaone4", {"attention__sliding_window": 64}, []),  # only its 64-layer model has windows
    ("phi3", {"attention__sliding_window": 64}, []),  # llama.cpp does not use it
    ("unheard-of", {"attention__sliding_window": 64, "attention__sliding_window_pattern": 2}, []),
]


@pytest.mark.parametrize(("architecture", "keys", "expected"), WINDOWED)
def test_windowed_layers(architecture: str, keys: dict[str, Value], expected: list[int]) -> None:
    found = shaped(architecture, **keys)
    assert [int(flag) for flag in found.sliding_layers] == expected
    assert (found.sliding_window is not None) == bool(expected)


def test_later_layers_may_share_the_cache_of_earlier_ones() -> None:
    assert shaped("gemma4", attention__shared_kv_layers=2).head_count_kv == [2, 2, 2, 2, 0, 0]
    assert shaped("gemma3n", 21).head_count_kv == [2] * 20 + [0]


def test_latent_attention() -> None:
    keys: dict[str, Value] = {"attention__key_length": 576, "attention__head_count_kv": 1}
    mla: dict[str, Value] = {"attention__key_length_mla": 192, "attention__value_length_mla": 128}
    assert shaped("deepseek2", **keys, **mla).key_length_mla == 576
    assert shaped("deepseek2", **keys).key_length_mla is None


def test_recurrent_models_have_state_and_no_cache() -> None:
    found = shaped("mamba", ssm__conv_kernel=4, ssm__inner_size=128, ssm__state_size=16)
    assert (found.recurrent, found.head_count_kv) == (True, [0])
    assert found.recurrent_state_bytes == 6 * 4 * (3 * 128 + 16 * 128)
    assert found.recurrent_width == 128


def test_hybrids_have_either() -> None:
    sizes: dict[str, Value] = {
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 128,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
    }
    per_layer = 4 * (3 * (128 + 2 * 2 * 16) + 16 * 128)
    found = shaped("qwen3next", 8, **sizes)
    assert found.head_count_kv == [0, 0, 0, 2, 0, 0, 0, 2]
    assert found.recurrent_state_bytes == 6 * per_layer
    jamba = shaped("jamba", 4, attention__head_count_kv=[0, 2, 0, 2], **sizes)
    assert (jamba.head_count_kv, jamba.recurrent_state_bytes) == ([0, 2, 0, 2], 2 * per_layer)
    both = shaped("falcon-h1", 2, **sizes)
    assert (both.head_count_kv, both.recurrent_state_bytes) == ([2], 2 * per_layer)
    nemotron = shaped("nemotron_h", 3, attention__head_count_kv=[0, 2, 0], feed_forward_length=[0, 0, 64], **sizes)
    assert (nemotron.head_count_kv, nemotron.recurrent_state_bytes) == ([0, 2, 0], per_layer)
    unknown = shaped("unheard-of", 2, **sizes)
    assert (unknown.head_count_kv, unknown.recurrent_state_bytes) == ([2], 2 * per_layer)  # an upper bound: both


def test_other_kinds_of_state() -> None:
    assert shaped("rwkv6", 1, wkv__head_size=16).recurrent_state_bytes == 4 * (2 * 64 + 64 * 16)
    lfm2 = shaped("lfm2", 2, shortconv__l_cache=3, attention__head_count_kv=[0, 2])
    assert (lfm2.recurrent_state_bytes, lfm2.head_count_kv) == (4 * 64 * 2, [0, 2])
    kimi = shaped("kimi-linear", 2, kda__head_dim=8, ssm__conv_kernel=4, attention__head_count_kv=[0, 2])
    assert kimi.recurrent_state_bytes == 4 * (3 * 3 * 4 * 8 + 8 * 8 * 4)


def test_experts_and_sparse_attention() -> None:
    found = shaped("qwen3moe", expert_count=128, expert_used_count=8, expert_feed_forward_length=96)
    assert (found.experts, found.experts_used, found.expert_feed_forward) == (128, 8, 96)
    assert shaped("deepseek32", attention__indexer__key_length=128).indexer_length == 128
    assert shaped("unheard-of", attention__indexer__key_length=128).indexer_length == 3 * 128


Change = Callable[[dict[str, Value]], object]
REFUSED: list[tuple[str, Change, str]] = [
    ("no architecture", lambda keys: keys.pop("general.architecture"), "general.architecture is missing"),
    ("a number as architecture", lambda keys: keys.update({"general.architecture": 3}), "architecture is missing"),
    ("no layers", lambda keys: keys.pop("llama.block_count"), "block_count is None"),
    ("too many layers", lambda keys: keys.update({"llama.block_count": 513}), "not between 1 and 512"),
    ("too large", lambda keys: keys.update({"llama.embedding_length": 2**40}), "not a whole number"),
    ("negative", lambda keys: keys.update({"llama.attention.head_count_kv": -1}), "not a whole number"),
    ("text", lambda keys: keys.update({"llama.attention.key_length": "16"}), "is '16', not a whole number"),
    ("text per layer", lambda keys: keys.update({"llama.feed_forward_length": ["1"]}), "is an array of 1, not"),
    ("fraction", lambda keys: keys.update({"llama.context_length": 0.5}), "is 0.5, not a whole number"),
    ("no width", lambda keys: keys.pop("llama.embedding_length"), "embedding_length is missing"),
    ("adapter", lambda keys: keys.update({"general.type": "adapter"}), "of the type 'adapter', not a model"),
    ("projector", lambda keys: keys.update({"general.architecture": "clip"}), "a projector"),
    ("later part", lambda keys: keys.update({"split.no": 1, "split.count": 2}), "name the first part"),
    ("parts missing", lambda keys: keys.update({"split.count": 3}), "split into 3 files, but 1"),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_cannot_be_served_is_refused(change: Change, message: str) -> None:
    metadata = Model().metadata()
    change(metadata)
    with pytest.raises(GgufError) as raised:
        summarize([parse(metadata, Model().tensors())])
    assert (raised.value.kind, raised.value.offset) == ("ModelUnsupported", None)
    assert message in str(raised.value)


def test_a_vocabulary_without_tensors_is_refused() -> None:
    with pytest.raises(GgufError, match="no tensors"):
        summarize([parse(Model().metadata(), [])])
    with pytest.raises(GgufError, match="no file"):
        summarize([])


def split_parts(*numbers: int, tensors: int | None = None) -> list[GgufMetadata]:
    specs = Model().tensors()
    parts = []
    for position, number in enumerate(numbers):
        split: dict[str, Value] = {"split.no": number, "split.count": len(numbers)}
        if tensors is not None:
            split["split.tensors.count"] = tensors
        metadata = {**Model().metadata(), **split} if position == 0 else split
        parts.append(parse(metadata, specs[position :: len(numbers)]))
    return parts


def test_parts_add_up() -> None:
    parts, whole = split_parts(0, 1, 2), summary_of(Model())
    found = summarize(parts)
    assert found.files == 3
    assert found.file_bytes == sum(part.file_bytes for part in parts)
    same = ("layer_tensors", "input_tensors", "output_tensors", "parameters", "vocabulary")
    assert [getattr(found, name) for name in same] == [getattr(whole, name) for name in same]


def test_parts_must_belong_together() -> None:
    with pytest.raises(GgufError, match="file 2 of the split model says that it is another part"):
        summarize(split_parts(0, 2, 1))
    with pytest.raises(GgufError, match="has 99 tensors, but its files hold 21"):
        summarize(split_parts(0, 1, tensors=99))
    twice = split_parts(0, 1)
    with pytest.raises(GgufError, match="another part"):
        summarize([twice[0], twice[0]])


SIZES = st.one_of(
    st.integers(-5, 5),
    st.integers(0, 2**63),
    st.booleans(),
    st.floats(width=32),
    st.text(max_size=3),
    st.lists(st.integers(0, 2**40), max_size=5),
    st.lists(st.text(max_size=2), max_size=3),
)
KEYS = st.sampled_from(
    [key for key in Model().metadata() if key != "general.architecture"]
    + [
        f"llama.{key}"
        for key in (
            "ssm.inner_size",
            "wkv.head_size",
            "attention.key_length_mla",
            "nextn_predict_layers",
            "ple.conv_kernel",
        )
    ]
)
ARCHITECTURES = st.sampled_from(["llama", "gemma3", "qwen3next", "nemotron_h", "mamba", "minimax-m3", "gemma4"])


@given(ARCHITECTURES, st.dictionaries(KEYS, SIZES, max_size=6))
def test_any_metadata_gives_a_summary_or_a_clear_error(architecture: str, changes: dict[str, Any]) -> None:
    metadata = {key.replace("llama.", f"{architecture}."): value for key, value in Model().metadata().items()}
    metadata["general.architecture"] = architecture
    metadata.update({key.replace("llama.", f"{architecture}."): value for key, value in changes.items()})
    try:
        found = summarize([parse(metadata, Model().tensors())])
    except GgufError as error:
        assert error.kind == "ModelUnsupported"  # noqa: PT017 - a summary is fine too
    else:
        assert found.recurrent_state_bytes >= 0
        assert len(found.head_count_kv) in (1, found.block_count)
        HeaderSummary.model_validate(found.to_dict())
