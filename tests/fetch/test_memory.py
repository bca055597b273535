"""How much memory the fetcher takes at most: whatever the size of the file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from support.fetch_site import add_repository
from support.gguf_writer import Model, write_model

from .conftest import fill

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node

MOST = 64 * 1024 * 1024


PROGRAM = """
import re, sys
from paddock.fetch.main import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
sys.exit(code)
"""


def peak(node: Node, *arguments: str) -> int:
    """Run the program; gives the most memory that it had, bytes. What its parent had before it started is left out."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    found = subprocess.run(command, env=node.environment({}), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return int(found.stderr) * 1024


def test_a_fetch_takes_at_most_64_megabytes(node: Node, tmp_path: Path) -> None:
    words = [f"word{number:07}" for number in range(250_000)]
    shape = Model(width=1024, vocabulary=100_000, extra={"tokenizer.ggml.tokens": words})
    path = fill(write_model(tmp_path / "large.gguf", shape), 8 * 1024 * 1024)
    assert path.stat().st_size > 6 * MOST
    add_repository(node.site, "org/large", {"large.gguf": path})
    cache = str(node.cache.folder)
    got = peak(node, "get", "hf://org/large/large.gguf", "--cache", cache)
    looked = peak(node, "header", "hf://org/large/large.gguf")
    assert got <= MOST
    assert looked <= MOST
