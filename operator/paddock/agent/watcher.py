"""Keeps the watching process running and hands on what it tells.

Whatever happens to that process is a fact about the node: the report then has no uses, and the lister asks the driver
for free memory itself, as it does where nothing can be watched.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from paddock.agent.processes import last_lines
from paddock.agent.settings import Settings
from paddock.agent.watch import BEAT, NOTHING_TO_WATCH
from paddock.api.report import DeviceTrouble, DeviceUse
from paddock.core.devices import normalise_pci

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "paddock.agent.watch")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a watching process that ended is started again; doubled each time, short again after a good line."""
_LONGEST_LINE = 1024 * 1024
_REAP = 2.0


class CardMemory(BaseModel):
    """Memory of one card, in bytes."""

    model_config = ConfigDict(frozen=True)

    pci_id: str
    total: int
    free: int | None = None


_Told = TypeVar("_Told", CardMemory, DeviceUse, DeviceTrouble)


class Look(BaseModel):
    """What the watching process tells."""

    model_config = ConfigDict(frozen=True)

    cards: list[CardMemory] = []
    uses: list[DeviceUse] | None = None
    troubles: list[DeviceTrouble] = []
    lost: list[str] = []

    @classmethod
    def parse(cls, line: bytes) -> "Look":
        """Read a line; raises ValidationError. Addresses are spelled as everywhere in reports."""
        look = cls.model_validate_json(line)
        return look.model_copy(
            update={
                "cards": [_spelled(one) for one in look.cards],
                "uses": None if look.uses is None else [_spelled(one) for one in look.uses],
                "troubles": [_spelled(one) for one in look.troubles],
            }
        )


def _spelled(one: _Told) -> _Told:
    return one.model_copy(update={"pci_id": normalise_pci(one.pci_id) or one.pci_id})


class Watcher:
    """Runs one watching process at a time."""

    def __init__(
        self, settings: Settings, take: Callable[[Look | None], None], command: Sequence[str] = COMMAND
    ) -> None:
        """Call `take` with each look, and with None when there is none any more."""
        self._settings, self._take = settings, take
        self._command = [*command, f"{settings.watch_interval:g}", f"{settings.fault_hold:g}"]
        if settings.host_processes:
            self._command.append("--processes")
        self._stuck: asyncio.subprocess.Process | None = None
        self.starts = 0
        """How often the process was started."""

    async def run(self) -> None:
        """Watch for ever."""
        pause = FIRST_PAUSE
        while True:
            heard, code = (False, None) if self._is_stuck() else await self._watch()
            self._take(None)
            if code == NOTHING_TO_WATCH:
                await asyncio.sleep(self._settings.listing_interval)
                continue
            pause = FIRST_PAUSE if heard else min(LONGEST_PAUSE, 2 * pause)
            await asyncio.sleep(pause)

    def _is_stuck(self) -> bool:
        """Tell whether an earlier process hangs inside the kernel; another would hang in the same place."""
        if self._stuck is not None and self._stuck.returncode is not None:
            self._stuck = None
        return self._stuck is not None

    async def _watch(self) -> tuple[bool, int | None]:
        """Follow one process to its end; tells whether it said anything, and its exit status."""
        self.starts += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as error:
            _log.warning("the drivers cannot be watched: %s", error)
            return False, None
        assert process.stdout is not None  # noqa: S101 - it was started with pipes
        assert process.stderr is not None  # noqa: S101
        errors = asyncio.create_task(process.stderr.read(_LONGEST_LINE))
        heard = False
        try:
            async with asyncio.timeout(self._settings.listing_timeout) as patience:
                while line := await process.stdout.readline():
                    heard = True
                    self._take(Look.parse(line))
                    patience.reschedule(asyncio.get_running_loop().time() + 3 * BEAT)
        except TimeoutError:
            _log.warning("the watching process says nothing: the driver hangs")
        except (ValidationError, ValueError) as error:
            _log.warning("the watching process says what cannot be read: %s", error)
        finally:
            await self._end(process)
            errors.cancel()
        if process.returncode not in (0, NOTHING_TO_WATCH, None):
            said = last_lines(errors.result()) if errors.done() and not errors.cancelled() else ""
            _log.warning("the watching process ended with %s: %s", process.returncode, said)
        return heard, process.returncode

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_REAP):
                if process.returncode is None and process.stdout is not None and process.stdout.at_eof():
                    await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REAP):
                await process.wait()
        if process.returncode is None:
            self._stuck = process
        else:
            # A pipe that was not read to its end stays open otherwise: asyncio offers no public way to close it.
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
