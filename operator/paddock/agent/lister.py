"""Keeps the report up to date: full listings in a child process, and free memory from the driver in between.

Whatever goes wrong below becomes a fault in the report. After a failed listing the report has no devices, since none
was observed; what that means for running servers is the operator's to judge.
"""

import asyncio
import contextlib
import dataclasses
import importlib.util
import logging
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from paddock.agent.board import Board
from paddock.agent.cached import changed, list_cache
from paddock.agent.offers import Offers
from paddock.agent.processes import Outcome, Runner
from paddock.agent.settings import Settings
from paddock.agent.watcher import CardMemory, Look
from paddock.api.bus import Bus
from paddock.api.report import Fault, GgmlType, GivenDevices, Library, NodeReport
from paddock.core.bus import from_driver, join, settle, slot_of
from paddock.core.devices import DriverEntry, RegistryEntry, list_devices, normalise_pci

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "paddock.agent.child")
IMAGE_FOLDER = Path("/app")
"""Where serving images keep llama.cpp's libraries."""
_FIRST_RETRY = 5.0
"""Seconds to the next try after a failed listing; doubled with each further failure."""
_CACHE_INTERVAL = 1.0
"""Seconds between two looks at whether the node's cache has changed: one question to the file system."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TELLING = re.compile(r"error|fail|cannot|could not|unable", re.IGNORECASE)

FaultCode = Literal["LibraryMissing", "ListingCrashed", "ListingTimedOut", "ListingFailed", "DriverFailed", "NoDevice"]


class _Driver(BaseModel):
    model_config = ConfigDict(frozen=True)

    state: Literal["present", "absent", "failed"]
    message: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    cards: list[DriverEntry] = []

    @property
    def signature(self) -> tuple[str, frozenset[tuple[str, str | None]]]:
        """What a new full listing is due for when it changes."""
        return self.state, frozenset((card.pci_id, card.uuid) for card in self.cards)


class _ListingFault(BaseModel):
    code: Literal["LibraryMissing", "ListingFailed"]
    message: str


class _Slot(BaseModel):
    files: dict[str, str] = {}
    group: int | None = None
    others: list[str] = []


class _Answer(BaseModel):
    """The child's line."""

    driver: _Driver
    slots: dict[str, _Slot] = {}
    library: Library | None = None
    entries: list[RegistryEntry] | None = None
    error: _ListingFault | None = None


@dataclasses.dataclass
class Statistics:
    """What the metrics tell of the listings."""

    listings: Counter[str] = dataclasses.field(default_factory=Counter)
    """Full listings by result: ok, or the fault's code."""
    seconds: float | None = None
    """How long the last full listing took."""
    memory_reads: int = 0
    """Looks at free memory between listings."""


class _ChildFailure(Exception):  # noqa: N818 - a fact about the node, no error of the agent
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Lister:
    """Lists the node's devices and posts the report on the board."""

    def __init__(self, settings: Settings, board: Board, command: Sequence[str] = COMMAND) -> None:
        self.statistics = Statistics()
        self._settings = settings
        self._board = board
        self._command = tuple(command)
        self._runner = Runner()
        self._offers = Offers(settings.plugin_folder)
        self._boot_id = _read_boot_id(settings.boot_id_file)
        self._driver = _Driver(state="absent")
        self._driver_failure: Fault | None = None
        self._failure: Fault | None = None
        self._entries: list[RegistryEntry] = []
        self._library: Library | None = None
        self._remark = ""
        self._said = ""
        self._look: Look | None = None
        self._buses: dict[str, Bus] = {}
        self._given: list[GivenDevices] | None = None
        self._other_cards = asyncio.Event()

    async def run(self) -> None:
        """List, then watch memory until the next listing is due; for ever."""
        delay = _FIRST_RETRY
        while True:
            if await self.list_all():
                delay = _FIRST_RETRY
                await self._watch(self._settings.listing_interval)
            else:
                await self._watch(min(delay, self._settings.listing_interval))
                delay *= 2

    async def _watch(self, seconds: float) -> None:
        """Follow free memory for some time; returns early when the driver's cards have changed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._settings.memory_interval)):
                    await self._other_cards.wait()
                    self._other_cards.clear()
                    return
            if loop.time() < end and not await self.refresh():
                return

    async def follow_plugin(self) -> None:
        """Report what the device plugin says, for ever."""
        await self._offers.follow(self._repost)

    def _repost(self) -> None:
        if self._board.posting is not None:  # the first report is that of the first listing
            self._post()

    def take(self, look: Look | None) -> None:
        """Take over what was seen of the drivers between listings; None: nobody watches them."""
        before, self._look = self._look, look
        if look is not None:
            memory = {one.pci_id: one for one in look.cards}
            cards = [_with_memory(card, memory) for card in self._driver.cards]
            self._driver = self._driver.model_copy(update={"cards": cards})
            if before is not None and _cards_of(look) != _cards_of(before):
                self._other_cards.set()
        self._repost()

    def take_given(self, given: list[GivenDevices] | None) -> None:
        """Take over which pod has which card."""
        if given != self._given:
            self._given = given
            self._repost()

    async def follow_cache(self) -> None:
        """Tell at once of models that come to the node's cache, or go; for ever."""
        seen = changed(self._settings.cache_folder)
        while True:
            await asyncio.sleep(_CACHE_INTERVAL)
            now = changed(self._settings.cache_folder)
            if now != seen and self._board.posting is not None:
                seen = now
                self._post()

    async def list_all(self) -> bool:
        """List the registry and the driver's cards and post the report; False when the registry was not listed."""
        try:
            answer = await self._list()
        except _ChildFailure as failure:
            self._failure = failure.fault
        except Exception:  # noqa: BLE001 - whatever happens here must not end the agent
            _log.exception("a listing failed unexpectedly")
            self._failure = _fault("ListingFailed", "the agent failed unexpectedly; its log has the details")
        else:
            self._failure = _fault(answer.error.code, answer.error.message) if answer.error else None
            self._take_driver(answer.driver)
            self._take_slots(answer)
            self._library = answer.library
            self._entries = answer.entries or []
        result = self._failure.code if self._failure else "ok"
        self.statistics.listings[result] += 1
        self._post()
        return self._failure is None

    async def refresh(self) -> bool:
        """Read the driver's cards alone and post the report; False when they are other cards than before."""
        if self._look is not None and self._look.cards and self._driver_failure is None:
            return True  # the watching process tells it
        if self._driver.state == "absent" and self._driver_failure is None:
            # The driver's library is put into a container when that starts, or never.
            if self._settings.cache_folder is not None:
                self._post()
            return True
        before = self._driver.signature
        self.statistics.memory_reads += 1
        try:
            answer = await self._ask("--memory")
        except _ChildFailure as failure:
            self._driver_failure = _fault("DriverFailed", failure.fault.message)
            self._driver = _without_memory(self._driver)
        else:
            self._take_driver(answer.driver)
        self._post()
        return self._driver.signature == before

    async def _list(self) -> _Answer:
        folder = find_library_folder(self._settings.library_folder)
        if folder is None:
            answer = await self._ask("--memory")
            message = "no ggml libraries: neither /app nor the package llama-cpp-python has them"
            return answer.model_copy(update={"error": _ListingFault(code="LibraryMissing", message=message)})
        answer = await self._ask(str(folder))
        if answer.error is None and answer.entries is None:
            raise _ChildFailure(_fault("ListingFailed", "the listing gave no devices and no reason"))
        return answer

    async def _ask(self, argument: str) -> _Answer:
        if (stuck := self._runner.stuck) is not None:
            message = f"process {stuck} of an earlier listing hangs in the driver and cannot be killed"
            raise _ChildFailure(_fault("ListingTimedOut", message))
        environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        try:
            outcome = await self._runner.run([*self._command, argument], environment, self._settings.listing_timeout)
        except OSError as error:
            raise _ChildFailure(_fault("ListingFailed", f"the listing cannot be started: {error}")) from error
        if argument != "--memory":
            self.statistics.seconds = outcome.seconds
            self._remark = " | ".join(part for part in outcome.errors.split(" | ") if _TELLING.search(part))
        return self._parse(outcome)

    def _parse(self, outcome: Outcome) -> _Answer:
        said = f"; its log ends: {outcome.errors}" if outcome.errors else ""
        if outcome.code is None:
            message = f"the listing took longer than {self._settings.listing_timeout:g} s{said}"
            raise _ChildFailure(_fault("ListingTimedOut", message))
        if outcome.code:
            code: FaultCode = "ListingCrashed" if outcome.code < 0 or outcome.code > 128 else "ListingFailed"  # noqa: PLR2004
            raise _ChildFailure(_fault(code, f"the listing {outcome.ending}{said}"))
        try:
            return _Answer.model_validate_json(outcome.output)
        except ValidationError as error:
            problem = f"the listing's answer cannot be read ({error.error_count()} problems){said}"
            raise _ChildFailure(_fault("ListingFailed", problem)) from error

    def _take_driver(self, driver: _Driver) -> None:
        """Take over what the driver says; where it fails, keep who its cards are, for that does not change."""
        self._driver_failure = _fault("DriverFailed", driver.message) if driver.state == "failed" else None
        if driver.state == "failed":
            cards = {card.pci_id: card for card in [*_without_memory(self._driver).cards, *driver.cards]}
            driver = driver.model_copy(
                update={
                    "cards": list(cards.values()),
                    "driver_version": driver.driver_version or self._driver.driver_version,
                    "cuda_version": driver.cuda_version or self._driver.cuda_version,
                }
            )
        self._driver = driver

    def _take_slots(self, answer: _Answer) -> None:
        """Take over where cards are plugged in; what was known of one that is not told of now stays."""
        told = {pci: card for card in answer.driver.cards if (pci := normalise_pci(card.pci_id))}
        for pci in {*told, *(one for text in answer.slots if (one := normalise_pci(text)))}:
            slot, card = answer.slots.get(pci), told.get(pci)
            by_kernel = slot_of(slot.files, slot.group, slot.others, pci) if slot else None
            peers = [{**one, "pci_id": normalise_pci(one["pci_id"])} for one in card.peers] if card else []
            now = join(by_kernel, from_driver(card.link, peers) if card else None)
            if (known := settle(self._buses.get(pci), now)) is not None and known != Bus():
                self._buses[pci] = known

    def _post(self) -> None:
        before = self._board.posting.report.devices if self._board.posting else []
        devices = [] if self._failure else list_devices(self._entries, self._driver.cards, before, self._buses)
        faults = [fault for fault in (self._failure, self._driver_failure) if fault]
        if not self._failure and not any(device.type in (GgmlType.GPU, GgmlType.IGPU) for device in devices):
            said = f"; its log says: {self._remark}" if self._remark else ""
            faults.append(_fault("NoDevice", f"ggml's registry lists no GPU{said}"))
        troubles = self._look.troubles if self._look is not None else []
        report = NodeReport(
            devices=self._offers.dress(devices, troubles),
            faults=faults,
            library=self._library,
            driver_version=self._driver.driver_version,
            cuda_version=self._driver.cuda_version,
            architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
            model_roots=list(self._settings.model_roots),
            cache=list_cache(self._settings.cache_folder),
            boot_id=self._boot_id,
            uses=self._look.uses if self._look is not None else None,
            troubles=troubles,
            given=self._given,
        )
        if self._board.post(report):
            self._tell(report)

    def _tell(self, report: NodeReport) -> None:
        """Log a report that says something new, unless only numbers moved."""
        found = ", ".join(device.name for device in report.devices) or "none"
        wrong = "".join(f"; {one.code}: {one.message}" for one in report.faults)
        wrong += "".join(f"; {one.pci_id} {one.code}: {one.message}" for one in report.troubles)
        said = f"devices {found}{wrong}"
        if said != self._said:
            _log.info("new report: %s", said)
        self._said = said


def find_library_folder(setting: Path | None, image_folder: Path = IMAGE_FOLDER) -> Path | None:
    """Choose the folder of the ggml libraries: the setting, else the image's, else llama-cpp-python's."""
    if setting is not None:
        return setting
    if (image_folder / "libggml.so").exists():
        return image_folder
    package = importlib.util.find_spec("llama_cpp")  # importing it would load the libraries into the agent
    for place in (package and package.submodule_search_locations) or ():
        if (Path(place) / "lib" / "libggml.so").exists():
            return Path(place) / "lib"
    return None


def _fault(code: FaultCode, message: str) -> Fault:
    return Fault(code=code, message=message)


def _without_memory(driver: _Driver) -> _Driver:
    return driver.model_copy(update={"cards": [dataclasses.replace(card, free=None) for card in driver.cards]})


def _with_memory(card: DriverEntry, memory: Mapping[str, CardMemory]) -> DriverEntry:
    found = memory.get(normalise_pci(card.pci_id) or "")
    return card if found is None else dataclasses.replace(card, total=found.total, free=found.free)


def _cards_of(look: Look) -> frozenset[str]:
    """Which cards answer."""
    broken = {one.pci_id for one in look.troubles if one.code in ("Lost", "Unreadable")}
    return frozenset(one.pci_id for one in look.cards) - broken


def _read_boot_id(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
