"""Embeddings and ranks: what a server is told, and what llama.cpp itself counts with each kind of pooling."""

from pathlib import Path

import pytest

from estimate import table
from estimate.measuring import libraries
from paddock.agent.measure import Meter, Subject
from paddock.api.modeldeployment import Mode, ServingSpec
from paddock.core.estimate import Options, estimate
from paddock.core.geometry import POOLINGS, Pooling, pooling_of
from paddock.core.need import need, options_of
from support.gguf_writer import write_gguf


@pytest.mark.parametrize(
    ("mode", "args", "expected"),
    [
        (Mode.EMBEDDING, [], None),
        (Mode.EMBEDDING, ["--pooling", "last"], "last"),
        (Mode.EMBEDDING, ["--pooling", "last", "--pooling", "cls"], "cls"),
        (Mode.RERANK, [], "rank"),
    ],
)
def test_the_estimate_is_of_what_the_server_is_told(mode: Mode, args: list[str], expected: str | None) -> None:
    options = options_of(ServingSpec(contextLength=512, mode=mode, args=args), gpu=True, backend="CUDA")
    assert (options.embeddings, options.pooling) == (True, expected)


def test_the_file_says_how_where_nobody_else_does() -> None:
    assert pooling_of(table.summary("bge-base-en"), Options(embeddings=True)) == "cls"
    assert pooling_of(table.summary("all-minilm-l6"), Options(embeddings=True)) == "mean"
    assert pooling_of(table.summary("all-minilm-l6"), Options(embeddings=True, pooling="none")) == "none"
    assert pooling_of(table.summary("llama-3.2-1b"), Options(embeddings=True)) == "none"


def test_a_pooled_graph_that_was_not_recorded_is_a_bound_above_that_without_pooling() -> None:
    summary = table.summary("granite-3.1-8b")
    plain, *pooled = (
        estimate(summary, Options(context=2048, embeddings=True, pooling=pooling)) for pooling in POOLINGS
    )
    assert plain.confidence == "exact"
    for one in pooled:
        assert one.confidence == "bound"
        assert plain.sum("device", "compute") < one.sum("device", "compute") < 1.2 * plain.sum("device", "compute")


def test_a_reranker_is_planned_as_one() -> None:
    spec = ServingSpec(contextLength=512, mode=Mode.RERANK)
    found = need(table.summary("bge-reranker-v2-m3"), spec, gpu=True, backend="CUDA")
    assert found.device_kv == 0
    assert found.device_compute < 64 * 2**20


@pytest.mark.skipif(libraries() is None, reason="llama.cpp's libraries are not built: make build")
@pytest.mark.parametrize(("model", "pooling"), [("all-minilm-l6", "mean"), ("bge-reranker-v2-m3", "rank")])
def test_it_is_measured_with_the_same_pooling(model: str, pooling: Pooling, tmp_path: Path) -> None:
    folder, parts, path = libraries(), table.parts(model), tmp_path / "m.gguf"
    assert folder is not None
    assert parts is not None
    write_gguf(path, *parts)
    options = Options(context=2048, parallel=2, kv_unified=pooling == "mean", embeddings=True, pooling=pooling)
    measured = Meter(folder).measure(Subject(path, model), options)
    found = estimate(table.summary(model), options)
    assert found.confidence == "exact"
    assert found.sum("device", "compute") == measured.devices[0].compute
    assert found.sum("host", "compute") == measured.host.compute
