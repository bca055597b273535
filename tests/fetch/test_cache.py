"""The cache of a node: what stays, what goes, what works without a network."""

from __future__ import annotations

import json
import mmap
import signal
from typing import TYPE_CHECKING

import pytest

from paddock.fetch.cache import Cache
from paddock.fetch.failures import FetchError
from support.fetch_site import add_repository, site
from support.gguf_writer import Model, write_model

from .conftest import Node, fill

if TYPE_CHECKING:
    from pathlib import Path

    from paddock.api.fetched import Done


@pytest.fixture
def three(node: Node, tmp_path: Path) -> list[Done]:
    """Fetch three models, one after the other."""
    done = []
    for number in range(3):
        path = fill(write_model(tmp_path / f"m{number}.gguf", Model(width=256, vocabulary=1000 + number)))
        node.site.files[f"/m{number}.gguf"] = path
        done.append(node.get(f"{node.site.address}/m{number}.gguf"))
    return done


def keys(node: Node) -> set[str]:
    return {model.key for model in node.cache.models()}


def test_the_longest_unused_goes_first(node: Node, three: list[Done]) -> None:
    first, second, third = three
    node.get(f"{node.site.address}/m0.gguf")  # used again
    removed = node.cache.clean(node.cache.used_bytes() - 1)
    assert [model.key for model in removed] == [second.key]
    assert keys(node) == {first.key, third.key}
    assert node.cache.used_bytes() < sum(one.bytes for one in (first, third)) + 10_000


def test_a_model_that_a_server_has_mapped_is_never_removed(node: Node, three: list[Done]) -> None:
    with (node.cache.folder / three[0].path).open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    try:
        assert [model.key for model in node.cache.clean(0)] == [three[1].key, three[2].key]
        assert [shelf.in_use for shelf in node.cache.shelves()] == [True]
        assert node.cache.clear() == []
        assert node.cache.verify(node.cache.models()[0]) is None
    finally:
        mapped.close()
    assert [model.key for model in node.cache.clean(0)] == [three[0].key]
    assert list((node.cache.folder / "blobs").iterdir()) == []


def test_a_model_with_a_lease_is_never_removed(node: Node, three: list[Done]) -> None:
    process = node.start("hold", three[1].key, "--cache", str(node.cache.folder))
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "held"
    node.cache.clean(0)
    assert keys(node) == {three[1].key}
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    node.cache.clean(0)
    assert keys(node) == set()


def test_a_limit_makes_room_before_a_fetch(node: Node, three: list[Done]) -> None:
    limit = sum(one.bytes for one in three[1:]) + node.site.files["/model.gguf"].stat().st_size + 100_000
    done = node.get(node.site.address + "/model.gguf", limit=limit)
    assert keys(node) == {three[1].key, three[2].key, done.key}


def test_a_limit_that_files_in_use_have_reached_is_said_with_numbers(node: Node, three: list[Done]) -> None:
    with (
        (node.cache.folder / three[0].path).open("rb"),
        (node.cache.folder / three[1].path).open("rb"),
        pytest.raises(
            FetchError, match=r"needs 4692704 bytes more, but the cache may hold 5000000 and \d+ of them are"
        ) as caught,
    ):
        node.get(node.site.address + "/model.gguf", limit=5_000_000)
    assert caught.value.failure == "OutOfSpace"
    assert keys(node) == {three[0].key, three[1].key}


def test_what_was_begun_and_left_goes_when_room_is_needed(node: Node, three: list[Done]) -> None:
    left = node.cache.folder / "partial" / f"{'a' * 32}.data"
    left.write_bytes(bytes(1_000_000))
    left.with_suffix(".journal").write_text("{}\n")
    node.cache.clean(node.cache.used_bytes() - 10)
    assert keys(node) == {one.key for one in three}
    assert node.leftovers() == []


def test_files_that_two_models_share_stay_with_the_other(node: Node, model: Path) -> None:
    node.site.files["/again.gguf"] = model
    first, second = node.get(node.site.address + "/model.gguf"), node.get(node.site.address + "/again.gguf")
    assert first.key != second.key
    assert node.cache.used_bytes() < 2 * first.bytes
    node.cache.clear([first.key])
    assert node.cache.verify(node.cache.models()[0]) is None


def test_a_spoilt_file_is_found(node: Node, three: list[Done]) -> None:
    path = node.cache.folder / three[1].path
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(100_000)
        stream.write(b"spoilt")
    code, lines, _ = node.run("cache", "verify", "--cache", str(node.cache.folder))
    assert code == 8
    assert {line["key"]: line["ok"] for line in lines} == {one.key: one is not three[1] for one in three}


def test_a_model_without_one_of_its_files_is_not_here(node: Node, three: list[Done]) -> None:
    (node.cache.folder / three[0].path).unlink()
    assert keys(node) == {three[1].key, three[2].key}
    assert node.get(f"{node.site.address}/m0.gguf").fetched == 0  # its blob is still here
    assert keys(node) == {one.key for one in three}


def test_list_and_clear_of_the_program(node: Node, three: list[Done]) -> None:
    folder = str(node.cache.folder)
    _, lines, _ = node.run("cache", "list", "--cache", folder)
    assert [line["key"] for line in lines] == [one.key for one in three]
    assert lines[0]["path"] == three[0].path
    assert not lines[0]["inUse"]
    code, lines, _ = node.run("cache", "clear", "--key", three[0].key, "--cache", folder)
    assert (code, lines[0]["key"]) == (0, three[0].key)
    assert node.run("cache", "clean", "--cache", folder)[0] == 2
    assert node.run("cache", "clean", "--limit", "0", "--cache", folder)[1][-1] == {"event": "cleaned", "bytes": 0}


@pytest.mark.parametrize("how", ["key", "commit", "tag"])
def test_with_the_network_cut_a_cached_model_is_given(tmp_path: Path, model: Path, how: str) -> None:
    with site() as served:
        add_repository(served, "org/repo", {"model.gguf": model})
        node = Node(Cache(tmp_path / "cache"), served, [])
        done = node.get("hf://org/repo/model.gguf")
        pinned = node.cache.models()[0].pinned
    settings = node.settings(patience=0.2)
    key = done.key if how == "key" else None
    source = pinned if how == "commit" else "hf://org/repo/model.gguf"
    assert node.get(source, settings=settings, key=key).path == done.path
    if how != "tag":
        asked = len(served.asked)
        assert node.get(source, settings=settings, key=key).fetched == 0
        assert len(served.asked) == asked
    with pytest.raises(FetchError) as caught:
        node.get("hf://org/other/model.gguf", settings=settings)
    assert caught.value.failure == "Unreachable"


def test_a_pinned_model_asks_nobody_when_it_is_here(node: Node, model: Path) -> None:
    add_repository(node.site, "org/repo", {"model.gguf": model})
    done = node.get("hf://org/repo/model.gguf")
    asked = len(node.site.asked)
    assert node.get(node.cache.models()[0].pinned).path == done.path
    assert len(node.site.asked) == asked


def test_a_read_only_look_needs_no_folders(tmp_path: Path) -> None:
    assert Cache(tmp_path / "none").models() == []
    with pytest.raises(FetchError):
        Cache(tmp_path).model("../etc")


def test_a_cache_where_nothing_can_be_written_is_said(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node.cache = Cache(tmp_path / "file" / "cache")
    with pytest.raises(FetchError, match="the cache cannot be written to") as caught:
        node.get(node.site.address + "/model.gguf")
    assert caught.value.failure == "OutOfSpace"


def test_several_contents_come_in_one_run_and_are_held_together(node: Node, tmp_path: Path) -> None:
    sizes = {}
    for number in range(3):
        path = fill(write_model(tmp_path / f"m{number}.gguf", Model(width=256, vocabulary=1000 + number)))
        node.site.files[f"/m{number}.gguf"] = path
        sizes[number] = path.stat().st_size
    own, first, second = (f"{node.site.address}/m{number}.gguf" for number in range(3))
    beside = [{"source": first, "name": "projector", "bytes": sizes[1]}, {"source": second, "bytes": sizes[2]}]
    arguments = [text for one in beside for text in ("--beside", json.dumps(one))]
    folder = str(node.cache.folder)
    code, lines, _ = node.run("get", own, "--cache", folder, "--bytes", str(sizes[0]), *arguments)
    done = lines[-1]
    assert (code, done["event"], done["fetched"]) == (0, "done", sum(sizes.values()))
    assert done["path"].endswith("/m0.gguf")
    assert len(keys(node)) == 3
    told = [one["total"] for one in lines if one["event"] == "progress"]
    assert set(told) <= {sum(sizes.values())}

    holder = node.start("hold", *keys(node), "--cache", folder)
    try:
        assert holder.stdout is not None
        for _ in range(3):
            assert json.loads(holder.stdout.readline())["event"] == "held"
        assert node.cache.clear() == []
    finally:
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=20)
    assert len(node.cache.clear()) == 3


def test_what_is_wrong_with_one_of_several_is_told_by_its_name(node: Node) -> None:
    absent = json.dumps({"source": f"{node.site.address}/absent.gguf", "name": "draft model"})
    code, lines, _ = node.run(
        "get", f"{node.site.address}/x.gguf", "--cache", str(node.cache.folder), "--beside", absent
    )
    assert code == 4
    assert lines[-1]["message"].startswith("draft model: ")
    code, _, said = node.run("get", f"{node.site.address}/x.gguf", "--cache", str(node.cache.folder), "--beside", "{}")
    assert (code, "--beside" in said) == (2, True)
