"""Run parts of the tests beside each other, and tell how far each is: `parts.py FOLDER "NAME: COMMAND" ...`.

The commands are pytest's with `-v`. The output of each goes to FOLDER/test-NAME.log; printed of it are failures as soon
as they are there, a line of progress now and then, and at the end all but the tests that passed. Fails if one does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PAUSE = 45.0
"""Seconds between two lines of progress."""
PATIENCE = 60.0
"""Seconds that a part gets to clean up when it is to end."""
COLLECTED = re.compile(r"(?:^|^collecting \.\.\. )collected (\d+) items?(?: .*?/ (\d+) selected)?")
RESULT = re.compile(r"(?P<test>\S+::.*?) (?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*\[ *\d+%\]$")


@dataclass
class Part:
    """One command, and what its output has told so far."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    output: IO[str]
    rest: str = ""
    total: int = 0
    done: int = 0

    def news(self) -> list[str]:
        """Read what is new; gives the failures in it."""
        lines = (self.rest + self.output.read()).split("\n")
        self.rest = lines.pop()
        failures = []
        for line in lines:
            if found := COLLECTED.match(line):
                self.total = int(found[2] or found[1])
            if found := RESULT.match(line):
                self.done += 1
                if found["word"] in ("FAILED", "ERROR"):
                    failures.append(f"{found['word']} {found['test']}")
        return failures

    def progress(self) -> str:
        """Say how far it is."""
        return f"{self.name} {self.done} of {self.total}" if self.total else f"{self.name} begins"

    def told(self) -> str:
        """Give its output without the tests that passed."""
        lines = self.log.read_text(errors="replace").splitlines()
        passed = (found and found["word"] in ("PASSED", "SKIPPED", "XFAIL") for found in map(RESULT.match, lines))
        return "\n".join(line for line, left_out in zip(lines, passed, strict=True) if not left_out)


def start(text: str, folder: Path) -> Part:
    """Start a part, in a process group of its own: it hears of Ctrl-C once, from here."""
    name, _, command = text.partition(": ")
    log = folder / f"test-{name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Part(name, process, log, log.open(errors="replace"))


def watch(parts: list[Part], pause: float) -> int:
    """Tell of all parts until they have ended; gives the status of the first that failed."""
    began = said = time.monotonic()
    running, status = list(parts), 0
    while running:
        time.sleep(0.2)
        ended = [one for one in running if one.process.poll() is not None]
        running = [one for one in running if one not in ended]
        for one in (*running, *ended):
            for failure in one.news():
                say(f"{one.name}: {failure}")
        for one in ended:
            code = one.process.returncode
            status = status or (code if code >= 0 else 128 - code)
            verdict = "passed" if code == 0 else f"FAILED (status {code})"
            say(f"\n{one.name} {verdict}; {one.log} has all:\n{one.told()}\n")
        if running and time.monotonic() - said >= pause:
            said = time.monotonic()
            minutes, seconds = divmod(int(said - began), 60)
            say(f"{minutes:3}:{seconds:02}  " + ", ".join(one.progress() for one in running))
    return status


def say(text: str) -> None:
    """Print at once: the output may be a file or a pipe."""
    print(text, flush=True)  # noqa: T201


def end(parts: list[Part]) -> None:
    """End what still runs: first as Ctrl-C does, so that pytest cleans up."""
    running = [one for one in parts if one.process.poll() is None]
    for one in running:
        one.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(0.1, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)


def interrupted(*_: object) -> None:
    """Have SIGTERM end it as Ctrl-C does."""
    raise KeyboardInterrupt


def main(folder: Path, commands: list[str], pause: float = PAUSE) -> int:
    """Run the parts; gives the exit status."""
    signal.signal(signal.SIGTERM, interrupted)
    # A shell has what it starts in the background ignore Ctrl-C, and whatever that starts would as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Part] = []
    try:
        parts += (start(one, folder) for one in commands)
        return watch(parts, pause)
    except KeyboardInterrupt:
        say("ending all parts")
        return 130
    finally:
        end(parts)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:], float(os.environ.get("PADDOCK_PROGRESS_SECONDS", PAUSE))))
