"""The runner of `make test`: progress, failures at once, the logs of failed parts, an end by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.settings import REPOSITORY
from support.client import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTEST = f"{sys.executable} -u -m pytest -v -p no:cacheprovider -c /dev/null"
GOOD = """
import time, pathlib
def test_quick(): pass
def test_slow():
    deadline = time.monotonic() + 60
    while not pathlib.Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
"""
BAD = """
import pytest
@pytest.mark.parametrize("case", ["a b", "c"])
def test_each(case): assert case == "c", "this is the reason"
"""


@contextmanager
def started(folder: Path, *, ignoring: bool = False, **files: str) -> Iterator[subprocess.Popen[str]]:
    """Start the runner with one part for each file of tests; `ignoring`: as a shell does in the background."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    parts = [f"{name}: {PYTEST} test_{name}.py" for name in files]
    command = [sys.executable, str(REPOSITORY / "tests" / "parts.py"), "build", *parts]
    runner = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command] if ignoring else command,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PADDOCK_PROGRESS_SECONDS": "0.5"},
    )
    with runner:
        try:
            yield runner
        finally:
            if runner.poll() is None:
                runner.terminate()


def until(runner: subprocess.Popen[str], words: str) -> str:
    """Read lines until one has these words; the test's own time limit ends it if none has."""
    assert runner.stdout is not None
    seen = ""
    for line in runner.stdout:
        seen += line
        if re.search(words, line):
            return seen
    raise AssertionError(seen)


def test_progress_and_failures_are_told_while_a_part_runs_and_a_failed_part_fails_all(tmp_path: Path) -> None:
    with started(tmp_path, good=GOOD, bad=BAD) as runner:
        seen = until(runner, r"good 1 of 2")
        if "this is the reason" not in seen:
            seen += until(runner, "this is the reason")
        assert re.search(r"bad: FAILED .*test_each\[a b\]", seen), seen
        assert runner.poll() is None, "the other part is not waited for"
        (tmp_path / "go").touch()
        rest, _ = runner.communicate(timeout=60)
    assert "good passed" in rest
    assert "2 passed" in rest
    assert "PASSED" not in rest, "noise"
    assert runner.returncode == 1
    assert "test_quick PASSED" in (tmp_path / "build" / "test-good.log").read_text()


def test_all_is_well_when_all_parts_pass(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with started(tmp_path, good=GOOD, other=GOOD) as runner:
        output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 0, output


LONG = """
import pathlib, time, pytest
@pytest.fixture
def thing():
    yield
    pathlib.Path("cleaned").touch()
def test_one(): pass
def test_long(thing):
    pathlib.Path("began").touch()
    time.sleep(300)
"""


@pytest.mark.parametrize(
    ("ignoring", "number"), [(False, signal.SIGTERM), (False, signal.SIGINT), (True, signal.SIGTERM)]
)
def test_an_interrupt_ends_the_parts_and_lets_them_clean_up(
    tmp_path: Path, number: signal.Signals, *, ignoring: bool
) -> None:
    with started(tmp_path, ignoring=ignoring, long=LONG) as runner:
        eventually((tmp_path / "began").exists, what="it runs")
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=45)
    assert runner.returncode == 130, output
    assert (tmp_path / "cleaned").exists()
