"""What the cache has already: said as the whole program says it, but without what the whole program needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paddock.fetch import near
from paddock.fetch.commands import run
from paddock.fetch.main import parser
from support.gguf_writer import Model, write_model

if TYPE_CHECKING:
    from argparse import Namespace

    from fetch.conftest import Node

SOURCE = "https://127.0.0.1:9/nobody-is-asked.gguf"


@pytest.fixture
def keys(node: Node) -> list[str]:
    """Have two models in the cache."""
    second = write_model(node.cache.folder.with_name("second.gguf"), Model(vocabulary=300))
    node.site.files["/second.gguf"] = second
    return [node.get(f"{node.site.address}/{name}.gguf").key for name in ("model", "second")]


def asked(node: Node, key: str, *more: str) -> Namespace:
    """Give the arguments of a `get` by key."""
    return parser().parse_args(["get", SOURCE, "--key", key, "--cache", str(node.cache.folder), *more])


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Give the line that was printed, without how long it took."""
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found | {"seconds": 0}


def test_it_says_what_the_whole_program_says(node: Node, keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    beside = json.dumps({"source": SOURCE, "key": keys[1], "name": "draft model", "bytes": 5})
    for more in ((), ("--beside", beside, "--bytes", "7", "--limit", "10000000")):
        arguments = asked(node, keys[0], *more)
        assert near.found(arguments)
        quick = said(capsys)
        assert run(arguments) == 0
        assert quick == said(capsys)
        assert quick["fetched"] == 0


def test_it_counts_as_a_use(node: Node, keys: list[str]) -> None:
    for key in keys:
        os.utime(node.cache.folder / "models" / key / near.DESCRIPTION, (1, 1))
    assert near.found(asked(node, keys[0]))
    assert [shelf.model.key for shelf in node.cache.shelves()] == [keys[1], keys[0]]


def test_the_digest_that_is_expected_is_compared(node: Node, keys: list[str]) -> None:
    model = node.cache.model(keys[0])
    assert model is not None
    digest = (model.files[0].digest or "").removeprefix("sha256:")
    assert near.found(asked(node, keys[0], "--sha256", digest.upper()))
    assert not near.found(asked(node, keys[0], "--sha256", "0" * 64))
    code, lines, _ = node.run(*_words(node, keys[0]), "--sha256", "0" * 64)
    assert (code, lines[-1]["failure"]) == (8, "Corrupt")


def _words(node: Node, key: str) -> list[str]:
    return ["get", SOURCE, "--key", key, "--cache", str(node.cache.folder)]


@pytest.mark.parametrize("wrong", ["file", "length", "description", "key", "secret", "beside", "no key"])
def test_anything_unusual_is_left_to_the_whole_program(
    node: Node, keys: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = node.cache.folder / "models" / keys[0]
    more: tuple[str, ...] = ()
    match wrong:
        case "file":
            (place / "model.gguf").unlink()
        case "length":
            (place / "model.gguf").chmod(0o644)
            os.truncate(place / "model.gguf", 5)
        case "description":
            (place / near.DESCRIPTION).write_text('{"key": [], "files": 5}')
        case "secret":
            more = ("--credentials", str(node.cache.folder))
        case "beside":
            more = ("--beside", '{"source": "hf://a/b/c.gguf"}')
        case _:
            pass
    arguments = asked(node, "../models" if wrong == "key" else keys[0], *more)
    if wrong == "no key":
        arguments.key = None
    assert not near.found(arguments)
    assert capsys.readouterr().out == ""


def test_what_a_server_waits_for_loads_little_and_what_stays_is_small(node: Node, keys: list[str]) -> None:
    script = "import sys; from paddock.fetch.main import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *_words(node, keys[0])], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "paddock.fetch.near" in loaded
    assert not {"pydantic", "ssl", "http.client", "paddock.fetch.commands"} & set(loaded)

    holder = node.start("hold", *keys, "--cache", str(node.cache.folder))
    try:
        assert holder.stdout is not None
        for key in keys:
            line = json.loads(holder.stdout.readline())
            assert (line["event"], line["key"], line["files"][0]["digest"][:7]) == ("held", key, "sha256:")
        status = Path(f"/proc/{holder.pid}/status").read_text()
        kilobytes = int(next(one for one in status.splitlines() if one.startswith("VmHWM")).split()[1])
        assert kilobytes < 24_000
    finally:
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=20)
    assert holder.returncode == 0


def test_what_is_not_there_cannot_be_held(node: Node, keys: list[str]) -> None:
    code, lines, _ = node.run("hold", keys[0], "feed", "--cache", str(node.cache.folder))
    assert (code, lines[-1]["failure"], lines[-1]["message"]) == (4, "NotFound", "the cache has no model feed")
