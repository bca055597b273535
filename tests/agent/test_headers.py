"""Reading headers from a file system that cannot be trusted, and the inspector's line."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.agent.headers import read_header
from paddock.agent.inspect import PREFIX, answer_line
from paddock.api.report import HeaderAnswer, HeaderFault, HeaderSummary
from paddock.api.vocabulary import REASONS, Reason
from support import companion_writer
from support import gguf_writer as writer
from support.gguf_writer import Model


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def summary(path: Path | str, *roots: Path) -> HeaderSummary:
    answer = read_header(str(path), [str(root) for root in roots])
    assert answer.fault is None, answer.fault
    assert answer.summary is not None
    return answer.summary


def fault(path: Path | str, *roots: Path) -> HeaderFault:
    answer = read_header(str(path), [str(root) for root in roots])
    assert answer.summary is None
    assert answer.fault is not None
    assert answer.fault.code in {reason.value for reason in REASONS if isinstance(reason, Reason)}
    return answer.fault


def test_reads_a_model_below_any_root(root: Path, tmp_path: Path) -> None:
    (root / "deep").mkdir()
    path = writer.write_model(root / "deep" / "tiny.gguf")
    found = summary(path, tmp_path / "elsewhere", root)
    assert (found.architecture, found.block_count, found.file_bytes) == ("llama", 2, path.stat().st_size)


def test_a_huge_model_is_read_from_its_header(root: Path) -> None:
    model = Model("llama", 80, 8192, 64, 8, 128, 28_672, 128_256)
    path = writer.write_model(root / "huge.gguf", model)
    assert path.stat().st_size > 100 * 2**30
    assert summary(path, root).parameters > 70e9


def test_a_root_may_be_a_link_and_links_may_point_within_it(root: Path, tmp_path: Path) -> None:
    writer.write_model(root / "real.gguf")
    (root / "link.gguf").symlink_to("real.gguf")
    (tmp_path / "alias").symlink_to(root)
    assert summary(root / "link.gguf", root).architecture == "llama"
    assert summary(tmp_path / "alias" / "link.gguf", tmp_path / "alias").architecture == "llama"


def outside(root: Path) -> Path:
    return writer.write_model(root.parent / "secret.gguf")


def linked_out(root: Path) -> Path:
    path = root / "link.gguf"
    path.symlink_to(outside(root))
    return path


def linked_folder(root: Path) -> Path:
    outside(root)
    (root / "folder").symlink_to(root.parent)
    return root / "folder" / "secret.gguf"


def beside(root: Path) -> Path:
    folder = root.with_name(root.name + "-other")
    folder.mkdir()
    return writer.write_model(folder / "x.gguf")


REFUSED: list[Callable[[Path], Path | str]] = [
    outside,
    linked_out,
    linked_folder,
    beside,
    lambda root: f"{root}/../secret.gguf",
    lambda _: "models/tiny.gguf",
    lambda _: "",
    lambda _: "/proc/self/mem",
    lambda _: "/nowhere/x.gguf",
    lambda root: f"{root}/a\0b",
    lambda root: root,
]


@pytest.mark.parametrize("make", REFUSED)
def test_paths_outside_the_roots_are_refused(root: Path, make: Callable[[Path], Path | str]) -> None:
    found = fault(make(root), root)
    assert found.code == "SourceRefused"
    assert f"({root})" in found.message


def test_a_refusal_does_not_tell_where_a_link_leads(root: Path) -> None:
    assert "secret" not in fault(linked_out(root), root).message


def test_without_roots_nothing_is_read(root: Path) -> None:
    found = fault(writer.write_model(root / "tiny.gguf"))
    assert (found.code, "none is declared" in found.message) == ("SourceRefused", True)


def test_a_folder_exchanged_for_a_link_while_opening_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = outside(root)
    (root / "folder").mkdir()
    victim = writer.write_model(root / "folder" / "secret.gguf")
    original = os.open

    def exchange(path: str, flags: int) -> int:
        victim.unlink()
        (root / "folder").rmdir()
        (root / "folder").symlink_to(secret.parent)
        return original(path, flags)

    monkeypatch.setattr(os, "open", exchange)
    assert fault(victim, root).code == "SourceRefused"


def folder_named(root: Path) -> Path:
    (root / "folder.gguf").mkdir()
    return root / "folder.gguf"


def fifo(root: Path) -> Path:
    os.mkfifo(root / "fifo.gguf")
    return root / "fifo.gguf"


def loop(root: Path) -> Path:
    (root / "loop.gguf").symlink_to("loop.gguf")
    return root / "loop.gguf"


def private(root: Path) -> Path:
    path = writer.write_model(root / "private.gguf")
    path.chmod(0o600 if os.geteuid() == 0 else 0)
    return path


def cut(root: Path) -> Path:
    return writer.write_truncated(root / "cut.gguf")


def other_format(root: Path) -> Path:
    return writer.write_not_gguf(root / "zip.gguf")


def empty(root: Path) -> Path:
    (root / "empty.gguf").touch()
    return root / "empty.gguf"


def vector(root: Path) -> Path:
    values = {"general.architecture": "controlvector", "controlvector.model_hint": "llama"}
    return writer.write_gguf(root / "vector.gguf", values, [writer.Spec("direction.1", (32,))])


def below_a_file(root: Path) -> Path:
    return writer.write_model(root / "tiny.gguf") / "x.gguf"


FAULTS: list[tuple[Callable[[Path], Path], str, str]] = [
    (lambda root: root / "none.gguf", "ModelNotFound", "no such file"),
    (below_a_file, "ModelNotFound", "no such file"),
    (lambda root: root / ("n" * 300), "ModelUnreadable", "File name too long"),
    (folder_named, "ModelUnreadable", "is a folder, not a file"),
    (fifo, "ModelUnreadable", "not a regular file"),
    (loop, "ModelUnreadable", ""),
    (private, "ModelUnreadable", ""),
    (other_format, "NotGguf", "begins with b'PK"),
    (empty, "NotGguf", "0 bytes"),
    (cut, "ModelTruncated", "bytes but its header describes"),
    (vector, "ModelUnsupported", "a control vector"),
]


@pytest.mark.parametrize(("make", "code", "message"), FAULTS)
def test_faults_name_the_file_and_the_reason(root: Path, make: Callable[[Path], Path], code: str, message: str) -> None:
    path = make(root)
    found = fault(path, root)
    assert (found.code, message in found.message) == (code, True), found.message
    assert str(path) in found.message


def test_what_serves_beside_a_model_is_told_as_what_it_is(root: Path) -> None:
    companion_writer.write_projector(root / "p.gguf", companion_writer.TINY)
    companion_writer.write_adapter(root / "a.gguf", Model())
    for name, kind in (("p.gguf", "Projector"), ("a.gguf", "Adapter")):
        found = read_header(str(root / name), [str(root)]).summary
        assert found is not None
        assert found.companion is not None
        assert (found.companion.kind, found.block_count) == (kind, 0)


def test_a_fifo_that_appears_after_the_check_does_not_hang(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = writer.write_model(root / "tiny.gguf")
    original = os.open

    def exchange(name: str, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return original(name, flags)

    monkeypatch.setattr(os, "open", exchange)
    found: list[HeaderFault] = []
    reader = threading.Thread(target=lambda: found.append(fault(path, root)), daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert [one.code for one in found] == ["ModelUnreadable"]


def test_an_input_error_is_a_fault(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(5, os.strerror(5), f"{descriptor} {length} {offset}")

    monkeypatch.setattr(os, "pread", broken)
    found = fault(writer.write_model(root / "tiny.gguf"), root)
    assert (found.code, "Input/output error" in found.message) == ("ModelUnreadable", True)


def test_short_reads_are_continued(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, length, at: original(descriptor, min(length, 7), at))
    assert summary(writer.write_model(root / "tiny.gguf"), root).block_count == 2


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.usefixtures("descriptors")
def test_nothing_stays_open(root: Path) -> None:
    for make in (cut, other_format, folder_named, private, lambda folder: writer.write_model(folder / "good.gguf")):
        read_header(str(make(root)), [str(root)])


def test_all_parts_of_a_split_model_are_read(root: Path) -> None:
    paths = writer.write_split(root, "big", 3)
    found = summary(paths[0], root)
    assert (found.files, found.file_bytes) == (3, sum(path.stat().st_size for path in paths))
    assert found.layer_tensors == summary(writer.write_model(root / "whole.gguf"), root).layer_tensors


def test_a_missing_part_is_named(root: Path) -> None:
    paths = writer.write_split(root, "big", 3)
    paths[2].unlink()
    found = fault(paths[0], root)
    assert (found.code, str(paths[2]) in found.message) == ("ModelNotFound", True)


def test_a_part_that_leads_outside_is_refused(root: Path) -> None:
    paths = writer.write_split(root, "big", 2)
    paths[1].rename(root.parent / "part.gguf")
    paths[1].symlink_to(root.parent / "part.gguf")
    assert fault(paths[0], root).code == "SourceRefused"


def test_a_truncated_part_is_named(root: Path) -> None:
    paths = writer.write_split(root, "big", 2)
    os.truncate(paths[1], paths[1].stat().st_size - 1)
    found = fault(paths[0], root)
    assert (found.code, str(paths[1]) in found.message) == ("ModelTruncated", True)


def test_only_the_first_part_may_be_named(root: Path) -> None:
    found = fault(writer.write_split(root, "big", 2)[1], root)
    assert found.code == "ModelUnsupported"


def test_a_renamed_first_part_says_how_it_must_be_called(root: Path) -> None:
    path = writer.write_split(root, "big", 2)[0].rename(root / "renamed.gguf")
    found = fault(path, root)
    assert (found.code, "NAME-00001-of-00002.gguf" in found.message) == ("ModelUnsupported", True)


def test_too_many_parts_are_refused(root: Path) -> None:
    path = root / "big-00001-of-02000.gguf"
    writer.write_gguf(path, {**Model().metadata(), "split.count": 2000, "split.no": 0}, Model().tensors())
    assert "at most 1000" in fault(path, root).message


def test_the_inspector_prints_one_line_and_succeeds(root: Path) -> None:
    path = writer.write_model(root / "tiny.gguf", Model(extra={"general.name": "two\nlines \u2028 and ü"}))
    for named, architecture in ((path, "llama"), (root / "none.gguf", None)):
        command = [sys.executable, "-m", "paddock.agent.inspect", str(named), str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr == ""
        (line,) = done.stdout.splitlines()
        answer = HeaderAnswer.model_validate_json(line.removeprefix(PREFIX))
        assert (answer.summary.architecture if answer.summary else None) == architecture
        assert (answer.fault.code if answer.fault else None) == (None if architecture else "ModelNotFound")


def test_the_inspector_answers_whatever_happens(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(answer_line([]).removeprefix(PREFIX))["fault"]["code"] == "InspectionFailed"

    def broken(path: str, roots: list[str]) -> HeaderAnswer:
        raise RuntimeError(f"{path} {roots}")

    monkeypatch.setattr("paddock.agent.inspect.read_header", broken)
    found = json.loads(answer_line(["/x", str(root)]).removeprefix(PREFIX))["fault"]
    assert found == {"code": "InspectionFailed", "message": f"RuntimeError: /x ['{root}']"}
