"""Model sources: files below model roots, and files in claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.core.source import CLAIM_MOUNT, ClaimSource, FileSource, ModelRoot, parse_source

MODELS = ModelRoot(path="/models", host_path="/var/lib/paddock/models")
TEAM = ModelRoot(path="/models/team/", host_path="/srv/team")
ROOTS = [MODELS, TEAM]


@pytest.mark.parametrize(
    ("text", "path", "root"),
    [
        ("file:///models/x.gguf", "/models/x.gguf", MODELS),
        ("file:///models/a/b/x.gguf", "/models/a/b/x.gguf", MODELS),
        ("file:///models//a///x.gguf", "/models/a/x.gguf", MODELS),
        ("file:///models/team/x.gguf", "/models/team/x.gguf", TEAM),
        ("file:///models/teams/x.gguf", "/models/teams/x.gguf", MODELS),
        ("file:///models/a%20b.gguf", "/models/a%20b.gguf", MODELS),
    ],
)
def test_a_file_belongs_to_the_innermost_root(text: str, path: str, root: ModelRoot) -> None:
    assert parse_source(text, ROOTS) == FileSource(path, root)


@pytest.mark.parametrize(
    "text",
    [
        "file:///etc/passwd",
        "file:///modelsx/x.gguf",
        "file:////models/x.gguf",
        "file:///models/../etc/passwd",
        "file:///models/a/../../etc/passwd",
    ],
)
def test_a_file_outside_every_root_is_refused_with_the_roots(text: str) -> None:
    found = parse_source(text, ROOTS)
    assert isinstance(found, str)
    assert found.endswith("is not below a model root (/models, /models/team/)")


def test_a_root_itself_is_no_model() -> None:
    assert parse_source("file:///models", ROOTS) == "/models is a model root itself, not a file below it"


def test_without_roots_the_administrator_is_told_what_to_declare() -> None:
    found = parse_source("file:///models/x.gguf", [])
    assert found == "/models/x.gguf cannot be served: no model root is declared (modelRoots in the chart's values)"


def test_a_root_may_be_everything() -> None:
    everything = ModelRoot(path="/", host_path="/")
    assert parse_source("file:///x.gguf", [everything]) == FileSource("/x.gguf", everything)


def test_a_claim_and_the_path_in_it() -> None:
    found = parse_source("pvc://models/folder/x.gguf", [])
    assert found == ClaimSource("models", "folder/x.gguf")
    assert isinstance(found, ClaimSource)
    assert found.mounted == f"{CLAIM_MOUNT}/folder/x.gguf"


@pytest.mark.parametrize("text", ["pvc://models/../x", "pvc://models/a/../../x", "pvc://models//etc/passwd"])
def test_a_path_that_leaves_the_claim_is_refused(text: str) -> None:
    assert parse_source(text, ROOTS) == f"{text} does not name a file inside the claim"


@given(st.text(alphabet="./ab", max_size=24))
def test_no_path_leaves_its_root_or_claim(path: str) -> None:
    found = parse_source(f"file:///{path}", [MODELS])
    if isinstance(found, FileSource):
        assert found.path.startswith("/models/")
        assert ".." not in found.path.split("/")
    claimed = parse_source(f"pvc://claim/{path}", [])
    if isinstance(claimed, ClaimSource):
        assert ".." not in claimed.path.split("/")
