"""The header of a model far away: few requests, what it says, and what the program prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from paddock.agent.headers import read_header
from paddock.api.answer import SourceAnswer
from paddock.fetch.credentials import NONE
from paddock.fetch.header import header
from support.fetch_site import add_repository
from support.gguf_writer import F32, Model, Spec, write_gguf, write_model, write_split, write_truncated

from .conftest import parsed

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node


def ask(node: Node, source: str) -> SourceAnswer:
    return header(parsed(source), NONE, node.settings())


def test_it_says_what_the_agent_says_of_the_same_file(node: Node, model: Path) -> None:
    add_repository(node.site, "org/repo", {"model-F16.gguf": model})
    answer = ask(node, "hf://org/repo:F16")
    assert answer.summary is not None
    assert answer.summary == read_header(str(model), [str(model.parent)]).summary
    assert answer.origin is not None
    assert answer.origin.license == "gemma"
    assert answer.origin.quantization == "F16"
    assert answer.origin.bytes == model.stat().st_size
    done = node.get(answer.origin.pinned, key=answer.origin.key)
    assert (done.key, done.path) == (answer.origin.key, answer.origin.path)


def test_the_licence_in_the_file_counts_first(node: Node, tmp_path: Path) -> None:
    path = write_model(tmp_path / "x.gguf", Model(extra={"general.license": "apache-2.0"}))
    add_repository(node.site, "org/repo", {"x.gguf": path})
    origin = ask(node, "hf://org/repo/x.gguf").origin
    assert origin is not None
    assert origin.license == "apache-2.0"


def test_a_header_with_a_large_vocabulary_takes_three_requests(node: Node, tmp_path: Path) -> None:
    words = [f"word{number:07}" for number in range(300_000)]
    path = write_model(tmp_path / "x.gguf", Model(extra={"tokenizer.ggml.tokens": words}))
    node.site.files["/x.gguf"] = path
    answer = ask(node, node.site.address + "/x.gguf")
    assert answer.summary is not None
    assert answer.fault is None
    assert len(node.site.asked) <= 3
    assert node.site.sent < 10e6


def test_a_file_of_forty_gigabytes_costs_no_more(node: Node, tmp_path: Path) -> None:
    rows = 40 * 1024**3 // (4 * 65536)
    tensors = [*Model().tensors(), Spec("blk.1.big.weight", (65536, rows), F32)]
    path = write_gguf(tmp_path / "x.gguf", Model().metadata(), tensors)
    assert path.stat().st_size > 40 * 1024**3
    node.site.files["/x.gguf"] = path
    answer = ask(node, node.site.address + "/x.gguf")
    assert answer.origin is not None
    assert answer.origin.bytes == path.stat().st_size
    assert answer.summary is not None
    assert answer.summary.file_bytes == path.stat().st_size
    assert node.site.sent <= 1024 * 1024


def test_the_parts_of_a_split_model_count_together(node: Node, tmp_path: Path) -> None:
    paths = write_split(tmp_path, "big", 4)
    for path in paths:
        node.site.files[f"/{path.name}"] = path
    answer = ask(node, f"{node.site.address}/{paths[0].name}")
    assert answer.summary == read_header(str(paths[0]), [str(tmp_path)]).summary
    assert answer.origin is not None
    assert len(answer.origin.files) == 4
    assert len(node.site.asked) == 4


def test_a_broken_file_is_a_fault_beside_its_origin(node: Node, tmp_path: Path) -> None:
    node.site.files["/x.gguf"] = write_truncated(tmp_path / "x.gguf")
    answer = ask(node, node.site.address + "/x.gguf")
    assert answer.origin is not None
    assert answer.fault is not None
    assert answer.fault.code == "ModelTruncated"


def test_the_program_prints_one_line_and_a_failure_is_an_answer(node: Node) -> None:
    code, _, said = node.run("header", node.site.address + "/model.gguf")
    assert code == 0
    assert said.startswith("PADDOCK-HEADER {")
    assert said.count("\n") == 1
    code, _, said = node.run("header", node.site.address + "/none.gguf")
    answer = SourceAnswer.model_validate(json.loads(said.removeprefix("PADDOCK-HEADER ")))
    assert code == 0
    assert answer.failure is not None
    assert answer.failure.failure == "NotFound"


def test_wrong_usage_is_said_in_words(node: Node) -> None:
    code, _, said = node.run("header", "gemma.gguf")
    assert code == 2
    assert "is not a source of models" in said
    code, _, said = node.run("header", "https://host/x.gguf", connections="99", conections="1")
    assert code == 2
    assert "PADDOCK_FETCH_CONECTIONS is not a setting" in said
    assert "PADDOCK_FETCH_CONNECTIONS" in said
