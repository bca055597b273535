"""Runs a short program with a time limit, and survives whatever it does."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

MOST_OUTPUT = 4 * 1024 * 1024
"""Bytes of standard output that are kept; a program that prints more is killed."""
_MOST_ERRORS = 16 * 1024
_REAP = 2.0
"""Seconds for a killed process to be gone; one that hangs inside the kernel stays."""
_LAST_LINES = 3
_LONGEST_LINE = 300
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    code: int | None
    """Exit status, negative for a signal; None when it was killed at the time limit."""
    output: bytes
    errors: str
    """The last lines that it wrote to standard error, in one."""
    seconds: float
    gone: bool = True
    """False when even a kill did not end it: it hangs inside the kernel."""

    @property
    def ending(self) -> str:
        """The end of the program in words."""
        if self.code is None:
            return "was killed at the time limit"
        if self.code < 0:
            with suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
            return f"was ended by signal {-self.code}"
        return f"ended with exit code {self.code}"


class Runner:
    """Runs one program at a time."""

    def __init__(self) -> None:
        self._stuck: asyncio.subprocess.Process | None = None

    @property
    def stuck(self) -> int | None:
        """Id of a process that outlived its kill; another one would hang in the same place."""
        if self._stuck is not None and self._stuck.returncode is not None:
            self._stuck = None
        return None if self._stuck is None else self._stuck.pid

    async def run(self, command: Sequence[str], environment: Mapping[str, str], limit: float) -> Outcome:
        """Run a program for at most `limit` seconds; raises OSError when it cannot be started."""
        start = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # so that a kill reaches what it started, too
        )
        output, errors = bytearray(), bytearray()
        readers = [
            asyncio.create_task(_read_head(process, output)),
            asyncio.create_task(_read_tail(process.stderr, errors)),
        ]
        code: int | None = None
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*readers)
                code = await process.wait()
        except TimeoutError:
            pass
        finally:
            gone = await self._end(process, readers)
        return Outcome(code, bytes(output), last_lines(bytes(errors)), time.monotonic() - start, gone)

    async def _end(self, process: asyncio.subprocess.Process, readers: Sequence[asyncio.Task[None]]) -> bool:
        if process.returncode is None:
            _kill(process)
        for reader in readers:
            reader.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REAP):
                await process.wait()
        if process.returncode is None:
            self._stuck = process
            return False
        # A pipe that was not read to its end stays open otherwise: asyncio offers no public way to close it.
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        return True


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _read_head(process: asyncio.subprocess.Process, into: bytearray) -> None:
    assert process.stdout is not None  # noqa: S101 - it was started with a pipe
    while piece := await process.stdout.read(64 * 1024):
        into += piece
        if len(into) > MOST_OUTPUT:
            _kill(process)
            return


async def _read_tail(stream: asyncio.StreamReader | None, into: bytearray) -> None:
    assert stream is not None  # noqa: S101 - it was started with a pipe
    while piece := await stream.read(64 * 1024):
        into += piece
        del into[:-_MOST_ERRORS]


def last_lines(errors: bytes) -> str:
    """Give the last lines of an error log in one line, without addresses, which would differ each time."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines()]
    kept = [_ADDRESS.sub("0x…", line)[:_LONGEST_LINE] for line in lines if line][-_LAST_LINES:]
    return " | ".join("".join(ch for ch in line if ch.isprintable()) for line in kept)
