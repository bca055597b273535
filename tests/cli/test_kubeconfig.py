import re
from pathlib import Path

import pytest

from paddock.cli.kubeconfig import namespace_of
from paddock.cli.problem import Problem

FIRST = """
current-context: work
contexts:
- {name: work, context: {cluster: c, user: u, namespace: team}}
- {name: home, context: {cluster: c, user: u}}
"""
SECOND = """
current-context: other
contexts:
- {name: other, context: {cluster: c, user: u, namespace: elsewhere}}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, text in (("first", FIRST), ("second", SECOND)):
        (tmp_path / name).write_text(text)
    return [str(tmp_path / "first"), str(tmp_path / "second")]


def test_the_namespace_is_the_contexts(files: list[str]) -> None:
    assert namespace_of(files[0], None, {}) == "team"
    assert namespace_of(files[0], "home", {}) == "default"
    assert namespace_of(None, None, {"KUBECONFIG": files[1]}) == "elsewhere"


def test_several_files_are_one(files: list[str]) -> None:
    joined = {"KUBECONFIG": f"/not/there:{files[0]}:{files[1]}"}
    assert namespace_of(None, None, joined) == "team"
    assert namespace_of(None, "other", joined) == "elsewhere"


def test_the_default_place(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(FIRST)
    assert namespace_of(None, None, {"HOME": str(tmp_path)}) == "team"


def test_inside_a_pod_none_is_needed(tmp_path: Path) -> None:
    assert namespace_of(None, None, {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "default"


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        (FIRST, "nope", "no context 'nope'; choose one with --context: home, work"),
        ("contexts: []", None, "no current context; choose one with --context: none"),
        ("", None, "no current context"),
        ("- a list", None, "is no kubeconfig"),
        ("a: [", None, "is no YAML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, context: str | None, said: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(Problem, match=re.escape(said)):
        namespace_of(str(tmp_path / "config"), context, {})


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="does not exist; pass an existing file"):
        namespace_of(str(tmp_path / "nope"), None, {})
