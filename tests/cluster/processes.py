"""Starts and ends the long-running programs of the cluster, each remembered by pid and start time.

A record of every program lies in the state folder, so that another run of this tool can end or restart it. A pid alone
is never trusted: it may have been given to a stranger in the meantime.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class ClusterError(Exception):
    """Something the user must know; shown without a traceback."""


@dataclass(frozen=True)
class Program:
    """What to start: `argv` in `cwd`, in the cgroup `cgroup`, its output in `log`."""

    name: str
    argv: tuple[str, ...]
    log: str
    cgroup: tuple[str, ...] = ()
    """Files that the process writes its own pid into before it becomes the program."""
    path: str = ""
    """Put before PATH."""


def wait_until(what: str, condition: Callable[[], bool], seconds: float, *, every: float = 0.05) -> None:
    """Poll `condition` until it holds; ClusterError naming `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


def started_at(pid: int) -> str | None:
    """Return when the process began, in clock ticks since boot, or None when it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Processes:
    """The programs of one state folder."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "processes"

    def names(self) -> list[str]:
        """Return the names of all programs ever started and not forgotten."""
        return sorted(each.stem for each in self._folder.glob("*.json")) if self._folder.is_dir() else []

    def pid(self, name: str) -> int | None:
        """Return the pid of the running program, None when it does not run."""
        record = self._read(name)
        if record is None or started_at(record["pid"]) != record["started"]:
            return None
        return int(record["pid"])

    def end_if_outdated(self, name: str, argv: Sequence[str]) -> None:
        """End a program that was started with other arguments."""
        record = self._read(name)
        if record is not None and list(record["program"]["argv"]) != list(argv):
            self.stop(name)

    def start(self, program: Program) -> int:
        """Start `program` unless it runs, and return its pid. It outlives this process."""
        running = self.pid(program.name)
        if running is not None:
            return running
        self._folder.mkdir(parents=True, exist_ok=True)
        Path(program.log).parent.mkdir(parents=True, exist_ok=True)
        # The shell joins the cgroup and is then replaced: children are never outside it, not even for a moment.
        join = "".join(f'echo $$ > "{file}" && ' for file in program.cgroup)
        argv = ["/bin/sh", "-c", f'{join}exec "$@"', program.name, *program.argv]
        environment = dict(os.environ)
        if program.path:
            environment["PATH"] = f"{program.path}:{environment['PATH']}"
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        record = {"pid": pid, "started": started_at(pid), "program": asdict(program)}
        temporary = self._folder / f".{program.name}"
        temporary.write_text(json.dumps(record, indent=1))
        temporary.rename(self._folder / f"{program.name}.json")
        return pid

    def restart(self, name: str, *, sig: int = signal.SIGTERM) -> int:
        """End the program and start it again just as it was started."""
        record = self._read(name)
        if record is None:
            raise ClusterError(f"{name} was never started; known: {', '.join(self.names()) or 'none'}")
        self.stop(name, sig=sig)
        made = record["program"]
        return self.start(Program(made["name"], tuple(made["argv"]), made["log"], tuple(made["cgroup"]), made["path"]))

    def stop(self, name: str, *, sig: int = signal.SIGTERM, patience: float = 10) -> None:
        """End the program with `sig`, after `patience` seconds with SIGKILL; nothing when it does not run."""
        pid = self.pid(name)
        if pid is None:
            return
        os.kill(pid, sig)
        try:
            wait_until(name, lambda: self.pid(name) is None, patience)
        except ClusterError:
            os.kill(pid, signal.SIGKILL)
            wait_until(f"end of {name} ({pid})", lambda: self.pid(name) is None, 10)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._folder / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
