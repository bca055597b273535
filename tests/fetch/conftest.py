"""Models with real bytes, a site that serves them, and the program as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from paddock.core.source import RemoteSource, parse_remote
from paddock.fetch import download, journal
from paddock.fetch import get as getting
from paddock.fetch.cache import Cache
from paddock.fetch.credentials import Credentials
from paddock.fetch.get import Order, get
from paddock.fetch.settings import Settings
from support.fetch_site import Site, site
from support.gguf_writer import Model, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paddock.api.fetched import Done, Progress

BLOCK = 64 * 1024


def fill(path: Path, header: int = 8 * 1024) -> Path:
    """Put bytes that are all different where the tensors of a model are; the header is shorter than `header`."""
    with path.open("r+b") as stream:
        stream.seek(header)
        while (left := path.stat().st_size - stream.tell()) > 0:
            stream.write(os.urandom(min(left, 1024 * 1024)))
    return path


def parsed(text: str) -> RemoteSource:
    """Parse a source that is right."""
    source = parse_remote(text)
    assert not isinstance(source, str), source
    return source


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of about 3 MB."""
    return fill(write_model(tmp_path_factory.mktemp("model") / "model.gguf", Model(width=256, vocabulary=4000)))


@pytest.fixture
def served(model: Path) -> Iterator[Site]:
    """Serve the model at /model.gguf."""
    with site(files={"/model.gguf": model}) as one:
        yield one


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that a small model has many; of this process only."""
    for module in (journal, download):
        monkeypatch.setattr(module, "BLOCK", BLOCK)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(download, "_LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(getting, "_PAUSE", 0.02)


@dataclass
class Node:
    """A node with a cache, in this process or by the program."""

    cache: Cache
    site: Site
    lines: list[Progress]

    def get(
        self, source: str, credentials: Credentials | None = None, settings: Settings | None = None, **order: Any
    ) -> Done:
        """Fetch in this process."""
        asked = Order(parsed(source), credentials or Credentials(), settings or self.settings(), **order)
        return get(asked, self.cache, self.lines.append)

    def settings(self, **values: Any) -> Settings:
        """Give settings for the site."""
        return Settings.model_validate(
            {"plain_http": True, "patience": 5, "silence": 5, "hub": self.site.address, "ollama": self.site.address}
            | values
        )

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start the program."""
        return subprocess.Popen(
            [sys.executable, "-m", "paddock.fetch.main", *arguments],
            env=self.environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **settings: str) -> tuple[int, list[dict[str, Any]], str]:
        """Run the program; gives its code, its lines, and all that it said."""
        process = self.start(*arguments, **settings)
        output, errors = process.communicate(timeout=120)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return process.returncode, lines, output + errors

    def environment(self, settings: dict[str, str]) -> dict[str, str]:
        """Give the environment of the program."""
        given = {"plain_http": "true", "patience": "20", "hub": self.site.address, "ollama": self.site.address}
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return kept | {f"PADDOCK_FETCH_{name.upper()}": value for name, value in (given | settings).items()}

    def leftovers(self) -> list[str]:
        """Give what is in the cache besides whole files and permanent locks."""
        found = [str(one.relative_to(self.cache.folder)) for one in sorted(self.cache.folder.rglob("*"))]
        return [
            name
            for name in found
            if name.startswith(("partial/", "models/.")) or (name.startswith("locks/") and name.endswith(".lock"))
        ]


@pytest.fixture
def node(tmp_path: Path, served: Site) -> Node:
    return Node(Cache(tmp_path / "cache"), served, [])
