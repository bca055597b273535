"""The head that predicts further tokens, against what llama.cpp allocates for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from estimate import table
from estimate.measuring import libraries
from estimate.models import estimator_of
from estimate.test_tensor_split import SMALL, allocated
from paddock.core.gguf import Skipped, read_gguf
from support.gguf_writer import Spec, Value, write_gguf

pytestmark = pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build")
LAYERED = replace(SMALL, split_mode="layer", shares=(1,))
SETS = {
    "one": LAYERED,
    "slots": replace(LAYERED, parallel=2, drafted=3, context=4096),
    "unified": replace(LAYERED, parallel=4, kv_unified=True, drafted=2),
    "without flash": replace(LAYERED, flash_attention="off", parallel=2),
}


def write_with_head(path: Path, name: str) -> Path:
    """Write a model of the tests with a copy of its last layer that predicts, and what such a layer has besides."""
    head, size = table.head(name)
    found = read_gguf(lambda offset, length: head[offset : offset + length], size)
    prefix = found.values["general.architecture"]
    count, width = found.values[f"{prefix}.block_count"], found.values[f"{prefix}.embedding_length"]
    assert isinstance(count, int)
    assert isinstance(width, int)
    values: dict[str, Value] = {}
    for key, value in found.values.items():
        if not isinstance(value, Skipped):
            values[key] = (*value, value[-1]) if isinstance(value, tuple) and len(value) == count else value
    values |= {f"{prefix}.block_count": count + 1, f"{prefix}.nextn_predict_layers": 1}
    vocabulary = next(one.shape[1] for one in found.tensors if one.name == "token_embd.weight")
    values |= {"tokenizer.ggml.model": "no_vocab", f"{prefix}.vocab_size": vocabulary}
    # Scales are in no published file, and make llama.cpp refuse a head that it is not to load.
    specs = [Spec(one.name, one.shape, one.type) for one in found.tensors if not one.name.endswith("scale")]
    names = {one.name for one in found.tensors}
    attending = max(layer for layer in range(count) if f"blk.{layer}.attn_output.weight" in names)
    last, new = f"blk.{attending}.", f"blk.{count}."
    specs += [one._replace(name=new + one.name.removeprefix(last)) for one in specs if one.name.startswith(last)]
    specs.append(Spec(f"{new}nextn.eh_proj.weight", (2 * width, width)))
    specs += [Spec(f"{new}nextn.{part}.weight", (width,)) for part in ("enorm", "hnorm", "shared_head_norm")]
    return write_gguf(path, values, specs)


@pytest.mark.parametrize("options", SETS.values(), ids=SETS)
@pytest.mark.parametrize("name", ["glm4moe-moe", "qwen35-dense", "qwen35moe-moe"])
def test_a_head_takes_what_was_said(name: str, options: object, tmp_path: Path) -> None:
    assert isinstance(options, type(LAYERED))
    path = write_with_head(tmp_path / "m.gguf", name)
    without, truth = allocated(path, options), allocated(path, options, head=True)
    found = estimator_of(path)(replace(options, mtp=True))
    parts = {one.name: one.bytes for one in found.addends}
    assert found.sum("device", "weights") == truth["weights"][0]
    assert parts["MTP head"] == truth["weights"][0] - without["weights"][0] > 0
    assert estimator_of(path)(options).sum("device", "weights") == without["weights"][0]
    buffer = next(size for kind, size in truth["head compute"].items() if kind.startswith("RPC"))
    assert parts["MTP head: compute buffer"] >= buffer
    cache = truth["head"][0] - truth["context"][0] - buffer
    assert parts["MTP head: keys and values"] == cache > 0
    assert parts["MTP head: inputs of the graph"] >= truth["head compute"]["CPU"]
