"""hf://: repositories of a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from support.fetch_site import COMMIT, add_repository, sha256
from support.gguf_writer import write_split

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node


def test_a_file_is_pinned_to_the_commit_and_checked_by_its_digest(node: Node, model: Path) -> None:
    add_repository(node.site, "org/repo", {"sub/model-Q8_0.gguf": model})
    done = node.get("hf://org/repo/sub/model-Q8_0.gguf")
    assert done.files[0].digest == "sha256:" + sha256(model)
    assert node.cache.models()[0].pinned == f"hf://org/repo@{COMMIT}/sub/model-Q8_0.gguf"
    assert node.get("hf://org/repo:Q8_0").fetched == 0  # the same content by another word


def test_a_quantization_means_all_parts(node: Node, tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big-Q6_K", 3)
    add_repository(node.site, "org/repo", {f"Q6_K/{path.name}": path for path in parts}, revision="v1")
    done = node.get("hf://org/repo@v1:Q6_K")
    assert [file.name for file in done.files] == [path.name for path in parts]


def test_a_redirect_to_the_store_is_followed_once_and_gets_no_token(node: Node, model: Path) -> None:
    add_repository(node.site, "org/repo", {"model.gguf": model})
    node.site.authorization = "Bearer hf_s3cret"
    with pytest.raises(FetchError) as caught:
        node.get("hf://org/repo/model.gguf", Credentials(token="hf_wr0ng"))
    assert caught.value.failure == "Unauthorized"
    assert "wr0ng" not in caught.value.message
    assert node.get("hf://org/repo/model.gguf", Credentials(token="hf_s3cret")).fetched


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf://org/repo/other.gguf", "the repository has no other.gguf; there are model-Q8_0.gguf"),
        ("hf://org/repo:Q4_0", "no file of the repository is called Q4_0; there are model-Q8_0.gguf"),
        ("hf://org/none/model.gguf", "there is no such file (status 404)"),
        ("hf://org/repo@v9/model.gguf", "there is no such file (status 404)"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(node: Node, model: Path, source: str, words: str) -> None:
    add_repository(node.site, "org/repo", {"model-Q8_0.gguf": model, "README.md": model})
    with pytest.raises(FetchError) as caught:
        node.get(source)
    assert caught.value.failure == "NotFound"
    assert words in caught.value.message


def test_a_hub_that_gives_other_bytes_than_it_lists_is_corrupt(node: Node, model: Path, tmp_path: Path) -> None:
    add_repository(node.site, "org/repo", {"model.gguf": model})
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes()[:-1] + b"x")
    node.site.files["/cdn/org/repo/model.gguf"] = other
    with pytest.raises(FetchError, match="arrived with the digest") as caught:
        node.get("hf://org/repo/model.gguf")
    assert caught.value.failure == "Corrupt"


def test_a_server_that_is_no_hub_is_said(node: Node) -> None:
    node.site.documents["/api/models/org/repo/revision/main"] = {"error": "what?"}
    with pytest.raises(FetchError, match="does not list org/repo in the way of a hub"):
        node.get("hf://org/repo/model.gguf")


@pytest.mark.parametrize("name", ["..", "../../evil.gguf", ".model.json", "a\\b.gguf", "x" * 300 + ".gguf"])
def test_names_that_a_hub_makes_up_stay_in_their_folder(node: Node, model: Path, name: str) -> None:
    add_repository(node.site, "org/repo", {f"Q1_0/{name}": model})
    document = node.site.documents["/api/models/org/repo/revision/main"]
    document["siblings"][0]["rfilename"] = f"Q1_0/{name}"
    try:
        done = node.get("hf://org/repo:Q1_0")
    except FetchError as error:
        assert error.failure == "NotFound"  # noqa: PT017 - either is right
    else:
        assert (node.cache.folder / done.path).resolve().is_relative_to(node.cache.folder)
        assert not done.files[0].name.startswith(".")
