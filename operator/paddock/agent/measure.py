"""Measures what a model takes by llama.cpp itself, from the header alone, in a child process; remembers the answers."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from paddock.core.estimate import BUILD, Options
from paddock.core.ggml import ELEMENTS
from paddock.core.measured import Counted, Measurement

COMMAND: Final = (sys.executable, "-P", "-m", "paddock.agent.measure_child")
SECONDS: Final = 30.0
"""How long a measurement may take; the largest known model takes half a second."""

_LARGEST_LIMIT: Final = 8 * 1024**3
_KEPT_LINES: Final = 3
_TYPES: Final = {element.name: number for number, element in ELEMENTS.items()}


class MeasureError(Exception):
    """Nothing was measured; the text says why, in one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is measured."""

    path: Path
    """The file, or the first of a split model's; only its header is read."""
    digest: str
    """SHA-256 of the headers, in hex."""


class Meter:
    """Measures with the libraries of one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        remembered: Path | None = None,
        command: Sequence[str] = COMMAND,
        seconds: float = SECONDS,
    ) -> None:
        self.folder = folder.resolve()
        self._remembered = remembered
        self._command = tuple(command)
        self._seconds = seconds
        self._known: dict[str, Measurement] = {}

    def measure(self, subject: Subject, options: Options, device: str | None = None) -> Measurement:
        """Measure on a device of ggml's registry, by default a plain one; raises MeasureError.

        A measurement on a GPU's own backend takes some hundred MiB of that GPU for a second.
        """
        if options.split_mode != "layer" and len(options.shares) > 1:
            raise MeasureError(f"what -sm {options.split_mode} divides cannot be counted on a plain device")
        key = self._key(subject, options, device)
        found = self._known.get(key) or self._recall(key)
        if found is None:
            found = self._ask(subject, options, device)
            self._keep(key, found)
        self._known[key] = found
        return found

    def _key(self, subject: Subject, options: Options, device: str | None) -> str:
        """Name the answer: header, flags, device, and the libraries' files as they are now."""
        try:
            files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in self.folder.glob("lib*.so*"))
        except OSError as error:
            raise MeasureError(f"{self.folder} cannot be read: {error}") from error
        flags = dataclasses.asdict(options) | {"backend": None}  # the same plain device stands for every backend
        said = json.dumps([subject.digest, flags, device, BUILD, str(self.folder), files], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    def _ask(self, subject: Subject, options: Options, device: str | None) -> Measurement:
        request = {
            "folder": str(self.folder),
            "path": str(subject.path),
            "device": device,
            "memory_limit": _memory_limit(),
            "options": _request(options),
        }
        environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
        if device is None:
            environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}
        try:
            done = subprocess.run(  # noqa: S603 - our own module
                self._command,
                input=json.dumps(request) + "\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._seconds,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"llama.cpp did not answer within {self._seconds:g} s") from error
        except OSError as error:
            raise MeasureError(f"the measuring process cannot be started: {error}") from error
        return _measurement(done)

    def _recall(self, key: str) -> Measurement | None:
        if self._remembered is None:
            return None
        try:
            return _parsed(json.loads((self._remembered / f"{key}.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, key: str, found: Measurement) -> None:
        """Write the answer down; a folder that cannot be written is no failure."""
        if self._remembered is None:
            return
        try:
            self._remembered.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._remembered, delete=False) as file:
                json.dump(_plain(found), file)
            Path(file.name).replace(self._remembered / f"{key}.json")
        except OSError:
            return


def _request(options: Options) -> dict[str, Any]:
    chosen = dataclasses.asdict(options)
    chosen["type_k"], chosen["type_v"] = _TYPES[options.cache_type_k], _TYPES[options.cache_type_v]
    return chosen


def _measurement(done: "subprocess.CompletedProcess[str]") -> Measurement:
    said = " | ".join(line.strip() for line in done.stderr.splitlines()[-_KEPT_LINES:])
    if done.returncode:
        ending = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with {done.returncode}"
        raise MeasureError(f"the measuring process {ending}; it said: {said}")
    try:
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise MeasureError(str(answer["error"]))
        return _parsed(answer)
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"the measuring process gave no answer; it said: {said}") from error


def _parsed(answer: Mapping[str, Any]) -> Measurement:
    *devices, host = (
        Counted(int(part["weights"]), int(part["kvCache"]), int(part["compute"]))
        for part in (*answer["devices"], answer["host"])
    )
    return Measurement(tuple(devices), host, int(answer["context"]), str(answer["version"]), float(answer["seconds"]))


def _plain(found: Measurement) -> dict[str, Any]:
    def part(one: Counted) -> dict[str, int]:
        return {"weights": one.weights, "kvCache": one.kv_cache, "compute": one.compute}

    rest = {"context": found.context, "version": found.version, "seconds": found.seconds}
    return {"devices": [part(one) for one in found.devices], "host": part(found.host), **rest}


def _memory_limit() -> int:
    """Give the bytes that the child may take: half of what is free, for it shall not be the one that fills a node."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return _LARGEST_LIMIT
    return max(min(free // 2, _LARGEST_LIMIT), 256 * 1024**2)


@contextmanager
def sparse_copies(headers: Sequence[tuple[str, bytes, int]]) -> Iterator[Path]:
    """Write files that have these names, these headers and these sizes, and holes instead of weights.

    Gives the path of the first; raises MeasureError when the disk cannot hold them.
    """
    with tempfile.TemporaryDirectory(prefix="paddock-") as folder:
        paths = [Path(folder) / name for name, _, _ in headers]
        try:
            for path, (_, header, size) in zip(paths, headers, strict=True):
                with path.open("wb") as file:
                    file.write(header)
                    file.truncate(size)
        except (OSError, ValueError, OverflowError) as error:
            raise MeasureError(f"a copy of the header cannot be written: {error}") from error
        yield paths[0]
