"""LoRA adapters against what llama.cpp allocates for them: weights to the byte in each place, computing never below."""

from dataclasses import replace
from pathlib import Path

import pytest

from estimate.measuring import libraries
from estimate.models import estimator_of
from estimate.test_tensor_split import SMALL, allocated
from paddock.core.beside import Beside
from paddock.core.division import DivisionError, Estimator
from paddock.core.estimate import Options
from paddock.core.gguf import read_gguf
from support.companion_writer import write_adapter
from support.gguf_writer import Model, write_model

pytestmark = pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build")
LAYERED = replace(SMALL, split_mode="layer")
SETS = {
    "one": replace(LAYERED, shares=(1,)),
    "partial": replace(LAYERED, shares=(1,), gpu_layers=2),
    "two": replace(LAYERED, shares=(1, 1)),
    "overridden": replace(LAYERED, shares=(1,), overrides=((r"blk\.[12]\.ffn_", "CPU"), ("attn_q", "CPU"))),
    "elsewhere": replace(LAYERED, shares=(1, 1), overrides=((r"blk\.0\.", "RPC1"), ("ffn_down", "CPU"))),
    "three": replace(LAYERED, shares=(1, 2, 1), parallel=2, kv_unified=True),
}
SHAPE = Model(
    layers=4, width=256, heads=4, heads_kv=2, head_width=64, forward=512, vocabulary=128,
    extra={"llama.vocab_size": 128},
)  # fmt: skip
EVERY = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")


def files(folder: Path, names: tuple[str, ...], rank: int) -> tuple[Path, Path, Estimator]:
    model, adapter = write_model(folder / "m.gguf", SHAPE), write_adapter(folder / "a.gguf", SHAPE, names, rank)
    data, found = adapter.read_bytes(), estimator_of(model)
    found.beside = Beside(adapters=(read_gguf(lambda offset, length: data[offset : offset + length], len(data)),))
    return model, adapter, found


@pytest.mark.parametrize("options", SETS.values(), ids=SETS)
@pytest.mark.parametrize(("names", "rank"), [(("attn_q", "ffn_down"), 4), (EVERY, 64), (EVERY, 300)])
def test_an_adapter_lies_beside_what_it_adapts(
    names: tuple[str, ...], rank: int, options: Options, tmp_path: Path
) -> None:
    model, adapter, estimator = files(tmp_path, names, rank)
    truth = allocated(model, options, adapters=[str(adapter)], prompt=256)
    found = estimator(options)
    before = {name.partition("[")[0]: size for name, size in truth["compute"].items()}
    after = {name.partition("[")[0]: size for name, size in truth["compute then"].items()}
    assert truth["adapters"][0] > truth["context"][0]
    for number in range(len(options.shares)):
        own = [one for one in found.addends if (one.place, one.device) == ("device", number)]
        weights = truth["adapters"][number] - truth["context"][number]
        assert sum(one.bytes for one in own if one.name == "adapter") == weights
        grown = after[f"RPC{number}"] - before[f"RPC{number}"]
        assert sum(one.bytes for one in own if one.name == "computing with the adapter") >= grown
        assert sum(one.bytes for one in own if one.kind == "compute") >= after[f"RPC{number}"]
    on_host = [one for one in found.addends if (one.place, one.kind) == ("host", "compute")]
    assert sum(one.bytes for one in on_host) >= after["CPU"]


def test_adapters_on_divided_tensors_are_refused_as_llama_cpp_ends_with_them(tmp_path: Path) -> None:
    model, adapter, estimator = files(tmp_path, ("attn_q",), 4)
    options = replace(SMALL, shares=(1, 1))
    assert "ended" in allocated(model, options, adapters=[str(adapter)], prompt=256)["error"]
    with pytest.raises(DivisionError, match="cannot compute with adapters"):
        estimator(options)
