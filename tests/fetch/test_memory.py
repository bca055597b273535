"""How much memory the fetcher takes at most: whatever the size of the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from support.fetch_site import add_repository
from support.gguf_writer import Model, write_model

from .conftest import fill

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node

MOST = 64 * 1024 * 1024


def peak(node: Node, *arguments: str) -> int:
    """Run the program; gives the most memory that it had, bytes."""
    process = node.start(*arguments)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, output
    return usage.ru_maxrss * 1024


def test_a_fetch_takes_at_most_64_megabytes(node: Node, tmp_path: Path) -> None:
    words = [f"word{number:07}" for number in range(250_000)]
    shape = Model(width=1024, vocabulary=100_000, extra={"tokenizer.ggml.tokens": words})
    path = fill(write_model(tmp_path / "large.gguf", shape), 8 * 1024 * 1024)
    assert path.stat().st_size > 6 * MOST
    add_repository(node.site, "org/large", {"large.gguf": path})
    cache = str(node.cache.folder)
    assert peak(node, "get", "hf://org/large/large.gguf", "--cache", cache) <= MOST
    assert peak(node, "header", "hf://org/large/large.gguf") <= 1.5 * MOST
