"""Tensors divided over devices, against what llama.cpp really allocates on each: to the byte."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimate import table
from estimate.measuring import libraries, write_sparse
from estimate.models import estimator_of
from paddock.core.architectures import WITHOUT_TENSOR_SPLIT
from paddock.core.estimate import Addend, Options

FOLDER = libraries()
SUMS = "sums over all devices"
PROGRAM = Path(__file__).parent / "allocating.py"
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
SMALL = Options(context=1024, batch=256, ubatch=256, split_mode="tensor")
SETS = {
    "halves": replace(SMALL, shares=(1, 1)),
    "three": replace(SMALL, parallel=2, kv_unified=True, shares=(3, 1, 2), cache_type_k="q8_0", cache_type_v="q8_0"),
    "uneven": replace(SMALL, context=4096, parallel=4, shares=(5, 3)),
    "partial": replace(SMALL, shares=(1, 1), gpu_layers=2),
}
ALL = [name for name in table.architectures() if table.summary(name).architecture not in WITHOUT_TENSOR_SPLIT]
SOME = ["llama-dense", "gemma3-dense", "gpt-oss-moe", "phi3-dense", "qwen3moe-moe"]


def allocated(path: Path, options: Options, **more: Any) -> dict[str, Any]:
    """Give what lives on each device after each step, in bytes."""
    told = {
        "shares": options.shares,
        "mode": options.split_mode,
        "context": options.context,
        "parallel": options.parallel,
        "unified": options.kv_unified,
        "batch": options.batch,
        "ubatch": options.ubatch,
        "typeK": options.cache_type_k,
        "typeV": options.cache_type_v,
        "flash": options.flash_attention,
        "layers": -1 if options.gpu_layers is None else options.gpu_layers,
        "drafted": options.drafted,
        "overrides": options.overrides,
        **more,
    }
    environment = {**os.environ, "LD_LIBRARY_PATH": str(FOLDER), "GGML_RPC_DEBUG": "1", "GGML_NO_BACKTRACE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(FOLDER), str(path)],
        input=json.dumps(told) + "\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    return json.loads(done.stdout) if done.stdout else {"error": f"ended with {done.returncode}"}


def compare(name: str, folder: Path, options: Options) -> bool:
    """Assert that they agree; gives False where llama.cpp refuses or ends."""
    return compare_at(write_sparse(folder / "m.gguf", *table.head(name)), options)


def compare_at(path: Path, options: Options) -> bool:
    """Do so for the model in a file."""
    truth = allocated(path, options)
    if "error" in truth:
        return False
    found = estimator_of(path)(options)
    buffer = next(size for kind, size in truth["compute"].items() if kind.startswith("Meta"))
    for number, weights in enumerate(truth["weights"]):
        parts = [one for one in found.addends if (one.place, one.device) == ("device", number) and one.name != SUMS]
        agree([one for one in parts if one.kind == "weights"], weights)
        agree([one for one in parts if one.kind == "kvCache"], truth["context"][number] - weights - buffer)
        agree([one for one in parts if one.kind == "compute"], buffer)
    host = sum(size for kind, size in truth["compute"].items() if not kind.startswith("Meta"))
    agree([one for one in found.addends if (one.kind, one.place) == ("compute", "host")], host)
    return True


def agree(parts: list[Addend], truth: int, what: str = "") -> None:
    """Assert that parts are what is true: to the byte, within a hundredth, or not below, as their sources say."""
    told, sources = sum(one.bytes for one in parts), {one.source for one in parts}
    room = truth // 100 if "formula" in sources else 0
    assert told >= truth - room, (what, parts, truth)
    if "bound" not in sources:
        assert told <= truth + room, (what, parts, truth)


@pytest.mark.parametrize("key", SETS)
@pytest.mark.parametrize("name", SOME)
def test_each_device_has_its_slices(name: str, key: str, tmp_path: Path) -> None:
    assert compare(name, tmp_path, SETS[key])


def test_sums_over_devices_are_counted(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "m.gguf", *table.head("gpt-oss-moe"))
    options = replace(SMALL, shares=(3, 1, 2))
    truth = allocated(path, options, prompt=256)
    more = [after - before for before, after in zip(truth["context"], truth["computed"], strict=True)]
    found = estimator_of(path)(options)
    assert more == [one.bytes for one in found.addends if one.name == SUMS]


def test_no_plain_device_divides_rows(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "m.gguf", *table.head("llama-dense"))
    truth = allocated(path, replace(SMALL, shares=(1, 1), split_mode="row"))
    assert "does not support split buffers" in truth["error"]


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_so_it_is_for_every_architecture(name: str, tmp_path: Path) -> None:
    done = [compare(name, tmp_path, options) for options in SETS.values()]
    assert any(done)
