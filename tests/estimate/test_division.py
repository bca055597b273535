"""Models over several devices, against llama.cpp itself: weights and cache to the byte on each, compute never below."""

from pathlib import Path

import pytest

from estimate import table
from estimate.corpus import SHAPES, metadata, tensors
from estimate.measuring import libraries, write_sparse
from estimate.test_against_llama import WITHOUT_CACHE_FORMULA
from paddock.agent.measure import MeasureError, Meter, Subject
from paddock.core.division import Estimator
from paddock.core.estimate import MemoryEstimate, Options
from paddock.core.gguf import read_gguf
from paddock.core.measured import COUNTED, Measurement
from paddock.core.summary import summarize
from support.gguf_writer import write_gguf

FOLDER = libraries()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
SETS = {
    "two": Options(context=4096, shares=(1, 1)),
    "three": Options(context=8192, parallel=4, kv_unified=True, shares=(3, 1, 2)),
    "partial": Options(context=4096, shares=(1, 1), gpu_layers=2),
    "without flash": Options(context=4096, parallel=2, shares=(2, 1), flash_attention="off"),
    "feed-forward on the host": Options(context=4096, overrides=((r"\.ffn_(down|up)", "CPU"),)),
    "moved": Options(context=4096, shares=(1, 1), overrides=((r"blk\.0\.", "RPC1"), ("^output", "CPU"))),
    "experts": Options(context=4096, shares=(1, 1), cpu_moe=1),
}
SOME = ["llama-3.2-1b", "gpt-oss-20b", "qwen3next-moe", "jais-dense", "deepseek2-moe"]
ALL = [*table.architectures(), *table.published()]


def compare(name: str, folder: Path) -> None:
    path = folder / "m.gguf"
    if name in SHAPES:
        write_gguf(path, metadata(SHAPES[name]), tensors(SHAPES[name]))
    else:
        write_sparse(path, *table.head(name))
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        parts = [read_gguf(read, path.stat().st_size)]
    estimator = Estimator(parts, summarize(parts))
    assert FOLDER is not None
    meter = Meter(FOLDER)
    counted = 0
    for key, options in SETS.items():
        try:
            measured = meter.measure(Subject(path, name), options)
        except MeasureError:
            continue  # llama.cpp refuses some of these
        counted += 1
        _agree(f"{name} {key}", estimator(options), measured)
    assert counted >= 4, name


def _agree(what: str, found: MemoryEstimate, measured: Measurement) -> None:
    name = what.partition(" ")[0]
    rows = [("device", number, one) for number, one in enumerate(measured.devices)]
    for place, number, truth in [*rows, ("host", 0, measured.host)]:
        sums = {kind: found.sum("host" if place == "host" else "device", kind, number) for kind in COUNTED}
        assert sums["weights"] == truth.weights, (what, place, number)
        if name in WITHOUT_CACHE_FORMULA:
            assert sums["kvCache"] >= truth.kv_cache, (what, place, number)
        else:
            assert sums["kvCache"] == truth.kv_cache, (what, place, number)
        assert sums["compute"] >= truth.compute, (what, place, number, sums["compute"] / truth.compute)


@pytest.mark.parametrize("name", SOME)
def test_each_device_has_what_llama_cpp_counts_on_it(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_so_it_is_for_every_architecture_and_published_shape(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)
