"""How much memory the fetcher takes at most: whatever the size of the file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.fetch_site import add_repository
from support.gguf_writer import Model, write_model
from support.stores import ACCESS, SECRET, s3

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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of more than 400 MB with a large vocabulary."""
    words = [f"word{number:07}" for number in range(250_000)]
    shape = Model(width=1024, vocabulary=100_000, extra={"tokenizer.ggml.tokens": words})
    path = fill(write_model(tmp_path_factory.mktemp("large") / "large.gguf", shape), 8 * 1024 * 1024)
    assert path.stat().st_size > 6 * MOST
    return path


def test_a_fetch_from_a_hub_takes_at_most_64_megabytes(node: Node, large: Path) -> None:
    add_repository(node.site, "org/large", {"large.gguf": large})
    assert peak(node, "get", "hf://org/large/large.gguf", "--cache", str(node.cache.folder)) <= MOST
    assert peak(node, "header", "hf://org/large/large.gguf") <= MOST


def test_a_fetch_from_a_bucket_takes_at_most_64_megabytes(node: Node, large: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (tmp_path / "s3").mkdir()
    with s3(tmp_path / "s3", "models") as address:
        os.link(large, tmp_path / "s3" / "data" / "models" / "large.gguf")
        for name, value in {"accessKeyId": ACCESS, "secretAccessKey": SECRET, "endpoint": address}.items():
            (secret / name).write_text(value)
        arguments = ("s3://models/large.gguf", "--credentials", str(secret))
        got = peak(node, "get", *arguments, "--cache", str(node.cache.folder))
        looked = peak(node, "header", *arguments)
    assert (got <= MOST, looked <= MOST) == (True, True), (got, looked)
