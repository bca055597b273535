"""A fetch that is killed, several that want the same, and a disk that is too small."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from paddock.fetch import get as getting
from paddock.fetch import journal
from paddock.fetch.download import SPAN, span
from paddock.fetch.failures import FetchError
from paddock.fetch.journal import BLOCK, Journal
from support.fetch_site import add_repository, sha256
from support.gguf_writer import Model, write_model

from .conftest import fill

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node


def wait_until(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of about 40 MB, ten blocks."""
    shape = Model(width=512, vocabulary=18000)
    return fill(write_model(tmp_path_factory.mktemp("large") / "large.gguf", shape))


def source_of(node: Node, large: Path, kind: str) -> str:
    """Serve it as a source with a digest beforehand, or with an ETag alone."""
    node.site.files["/large.gguf"] = large
    if kind == "etag":
        return node.site.address + "/large.gguf"
    add_repository(node.site, "org/large", {"large.gguf": large})
    return "hf://org/large/large.gguf"


@pytest.mark.parametrize("kind", ["digest", "etag"])
def test_killed_at_twenty_random_points_it_goes_on_and_ends_right(node: Node, large: Path, kind: str) -> None:
    source = source_of(node, large, kind)
    node.site.bytes_per_second = 4e6
    whole, points, killed = large.stat().st_size, random.Random(7), 0  # noqa: S311 - repeatable
    arguments = ("get", source, "--cache", str(node.cache.folder))
    for _ in range(20):
        before = node.site.sent
        process = node.start(*arguments)
        point = points.uniform(0, 0.08) * whole
        while process.poll() is None and node.site.sent - before < point:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        for done in node.cache.models():  # never a half file under its name
            assert node.cache.verify(done) is None
    assert killed >= 15
    node.site.bytes_per_second = 0
    code, lines, said = node.run(*arguments)
    assert code == 0, said
    assert lines[-1]["files"][0]["digest"] == "sha256:" + sha256(large)
    assert (node.cache.folder / lines[-1]["path"]).read_bytes() == large.read_bytes()
    assert node.leftovers() == []


def test_finished_blocks_are_not_fetched_again_after_a_kill(node: Node, large: Path) -> None:
    source = source_of(node, large, "digest")
    node.site.bytes_per_second = 3e6
    process = node.start("get", source, "--cache", str(node.cache.folder), connections="2")
    journals = node.cache.folder / "partial"
    wait_until(lambda: any(len(one.read_text().split("\n")) > 3 for one in journals.glob("*.journal")))
    process.kill()
    process.communicate()
    noted = len(next(iter(journals.glob("*.journal"))).read_text().split("\n")) - 2
    node.site.bytes_per_second = 0
    done = node.get(source)
    assert done.files[0].digest == "sha256:" + sha256(large)
    assert done.fetched <= large.stat().st_size - (noted - 1) * BLOCK
    assert node.leftovers() == []


def test_what_was_begun_of_another_version_is_not_taken_up(node: Node, large: Path, tmp_path: Path) -> None:
    source = source_of(node, large, "etag")
    node.site.bytes_per_second = 3e6
    process = node.start("get", source, "--cache", str(node.cache.folder))
    wait_until(lambda: node.site.sent > 12e6)
    process.kill()
    process.communicate()
    other = tmp_path / "large.gguf"
    other.write_bytes(large.read_bytes()[:-1000] + os.urandom(1000))
    node.site.files["/large.gguf"] = other
    node.site.bytes_per_second = 0
    assert node.get(source).files[0].digest == "sha256:" + sha256(other)


def test_many_that_want_one_file_fetch_it_once(node: Node, large: Path) -> None:
    source = source_of(node, large, "digest")
    node.site.bytes_per_second = 4e6
    processes = [node.start("get", source, "--cache", str(node.cache.folder)) for _ in range(4)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert node.site.sent == large.stat().st_size
    fetched = [int(output.rpartition('"fetched":')[2].partition(",")[0]) for output in outputs]
    assert sorted(fetched) == [0, 0, 0, large.stat().st_size]
    assert any("another process of this node" in output for output in outputs)
    assert node.leftovers() == []


def test_one_that_waits_takes_over_when_the_owner_is_killed(node: Node, large: Path) -> None:
    source = source_of(node, large, "digest")
    node.site.bytes_per_second = 1e6
    owner = node.start("get", source, "--cache", str(node.cache.folder))
    wait_until(lambda: node.site.sent > 2e6)
    other = node.start("get", source, "--cache", str(node.cache.folder))
    assert other.stdout is not None
    assert "another process of this node" in other.stdout.readline()
    owner.kill()
    owner.communicate()
    node.site.bytes_per_second = 0
    output, errors = other.communicate(timeout=60)
    assert other.returncode == 0, output + errors
    assert node.leftovers() == []


def test_too_small_a_disk_is_said_beforehand_with_numbers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getting, "free_bytes", lambda _: 65 * 1024 * 1024)
    with pytest.raises(FetchError) as caught:
        node.get(node.site.address + "/model.gguf")
    assert caught.value.failure == "OutOfSpace"
    assert "needs 4692704 bytes more; 68157440 are free in " in caught.value.message
    assert node.site.ranges_asked("/model.gguf") == ["bytes=0-1048575"]
    assert node.leftovers() == []


@pytest.mark.usefixtures("small_blocks")
def test_what_others_are_fetching_counts_as_taken(
    node: Node, large: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    source = source_of(node, large, "digest")
    node.site.bytes_per_second = 1e6
    other = threading.Thread(target=lambda: node.get(source), daemon=True)
    other.start()
    wait_until(lambda: any((node.cache.folder / "partial").glob("*.data")))
    monkeypatch.setattr(getting, "free_bytes", lambda _: getting.SPARE + model.stat().st_size + 1)
    with pytest.raises(FetchError, match=r"are promised to other fetches and 67108864 stay free"):
        node.get(node.site.address + "/model.gguf")
    node.site.bytes_per_second = 0
    other.join(60)


def test_a_full_disk_in_the_middle_is_out_of_space(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FetchError) as caught:
        node.get(node.site.address + "/model.gguf")
    assert (caught.value.failure, caught.value.transient) == ("OutOfSpace", False)


def test_a_journal_that_was_cut_off_anywhere_is_believed_as_far_as_it_goes(tmp_path: Path) -> None:
    path, data = tmp_path / "x.journal", tmp_path / "x.data"
    data.write_bytes(b"")
    size = 20 * BLOCK - 5
    with data.open("r+b") as stream, Journal(path, "sha256:1", size) as first:
        for block in (0, 1, 12, 19):
            first.done[block] = 1
            first.note(stream.fileno())
        assert first.bytes_done == 4 * BLOCK - 5
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with Journal(path, "sha256:1", size) as again:
            assert {block for block in range(20) if again.done[block]} <= {0, 1, 12, 19}
    with Journal(path, "sha256:2", size) as other:
        assert other.bytes_done == 0


def test_progress_of_a_file_of_forty_gigabytes_is_counted_in_blocks(tmp_path: Path) -> None:
    size = 40 * 1024**3
    with Journal(tmp_path / "x.journal", "sha256:1", size) as one:
        assert one.count == size // journal.BLOCK
        one.done[:5000] = bytes([1]) * 5000
        assert one.bytes_done == 5000 * BLOCK


@pytest.mark.parametrize("blocks", [1, 3, 50, 129, 1000])
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_workers_that_are_equally_fast_end_together_after_few_requests(blocks: int, workers: int) -> None:
    ends, taken, asked = [0] * workers, 0, 0
    while taken < blocks:
        size = min(span(taken, blocks - taken, workers), blocks - taken)
        first = min(range(workers), key=ends.__getitem__)
        ends[first] += size
        taken, asked = taken + size, asked + 1
    assert max(ends) - min(ends) <= 1
    assert asked <= blocks / SPAN + 5 * workers


def test_the_first_requests_are_short_for_the_hash_to_begin_with() -> None:
    assert [span(taken, 1000 - taken, 4) for taken in (0, 1, 4, 8, 16, 500)] == [1, 1, 1, 2, 4, SPAN]
