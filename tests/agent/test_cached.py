"""What an agent tells of the cache: only what is there whole."""

import asyncio
from pathlib import Path

import pytest

from paddock.agent import lister as lister_module
from paddock.agent.board import Board
from paddock.agent.cached import list_cache
from paddock.agent.lister import Lister
from paddock.agent.settings import Settings
from paddock.api.fetched import SourceFile
from paddock.api.report import CachedModel
from paddock.fetch.cache import Cache
from paddock.fetch.cache import CachedModel as Model


def fill(folder: Path, key: str, *sizes: int) -> None:
    """Publish a model of files of these sizes, as paddock-fetch does."""
    cache = Cache(folder)
    cache.prepare()
    files = []
    for number, size in enumerate(sizes):
        digest = f"sha256:{key}{number}"
        cache.blob_place(digest).write_bytes(b"x" * size)
        files.append(SourceFile(name=f"part-{number}.gguf", bytes=size, digest=digest))
    cache.publish(Model(key=key, source="hf://o/r:Q8_0", pinned="hf://o/r:Q8_0", files=files))


def test_without_a_cache_there_is_no_word_of_it(tmp_path: Path) -> None:
    assert list_cache(None) is None
    assert list_cache(tmp_path / "absent") is None
    assert list_cache(tmp_path) == [], "a cache into which nothing was fetched yet"


def test_whole_models_are_told_by_key_with_the_size_of_their_files(tmp_path: Path) -> None:
    fill(tmp_path, "bb22", 10)
    fill(tmp_path, "aa11", 20, 30)
    assert list_cache(tmp_path) == [CachedModel(key="aa11", bytes=50), CachedModel(key="bb22", bytes=10)]


def test_what_is_begun_or_being_removed_is_not_told(tmp_path: Path) -> None:
    fill(tmp_path, "aa11", 10)
    (tmp_path / "models" / ".staged-bb22").mkdir()
    (tmp_path / "models" / ".staged-bb22" / "part-0.gguf").write_bytes(b"x")
    (tmp_path / "models" / "cc33").mkdir()
    (tmp_path / "models" / "cc33" / ".model.json").write_text("{}")
    (tmp_path / "models" / "note").write_text("no folder")
    assert list_cache(tmp_path) == [CachedModel(key="aa11", bytes=10)]


async def test_a_fetched_model_is_in_the_next_report_without_a_listing(tmp_path: Path) -> None:
    board = Board()
    lister = Lister(Settings(cache_folder=tmp_path), board, ("false",))
    await lister.list_all()
    assert board.posting is not None
    before = board.posting
    assert before.report.cache == []
    fill(tmp_path, "aa11", 10)
    await lister.refresh()
    assert board.posting.report.cache == [CachedModel(key="aa11", bytes=10)]
    assert board.posting.etag != before.etag


async def test_a_model_that_comes_or_goes_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lister_module, "_CACHE_INTERVAL", 0.01)
    Cache(tmp_path).prepare()
    board = Board()
    lister = Lister(Settings(cache_folder=tmp_path), board, ("false",))
    await lister.list_all()
    task = asyncio.create_task(lister.follow_cache())
    await asyncio.sleep(0)  # it has begun
    try:
        for expected in (1, 0):
            posting = board.posting
            if expected:
                fill(tmp_path, "aa11", 10)
            else:
                Cache(tmp_path).clear()
            async with asyncio.timeout(10):
                while board.posting is posting:  # noqa: ASYNC110 a report is told by no event
                    await asyncio.sleep(0.01)
            assert board.posting is not None
            assert len(board.posting.report.cache or []) == expected
    finally:
        task.cancel()
