"""The process that watches the drivers: `python -m paddock.agent.watch INTERVAL [HOLD] [--processes]`.

One look per interval: memory of each card, which processes have how much of it and whose they are, and errors. Prints a
line of JSON when there is something to tell, and now and then without, so that its silence means that it hangs. It is a
process of its own because drivers hang and crash; the agent starts it anew.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from paddock.agent.nvml import Session
from paddock.core.usage import (
    OF_PROGRAMS,
    RECOVERY,
    Owner,
    Told,
    drm_memory,
    follow,
    kfd_card,
    kfd_memory,
    owner_of,
    xid_in_words,
)

NOTHING_TO_WATCH = 3
"""Exit status where there is no driver that could be watched."""
BEAT = 10.0
"""Seconds after which a line is printed even if nothing has changed."""
MOST_SHARE = 0.01
"""Share of a core that looks may take; where they cost more, they become rarer."""
LONGEST = 15.0
"""Seconds between two looks at most."""
THOROUGH = 10
"""Every how many looks a card is asked for its error counters."""
HOLD = 300.0
"""Seconds after the last error of a card until it counts as sound again."""
_DRM = ("amdgpu", "i915", "xe")
_LIMIT = 64 * 1024

Card = dict[str, Any]


class Clock(Protocol):
    """What gives seconds."""

    def __call__(self) -> float:
        """Give them."""


class Folders:
    """/proc and /sys, or what stands for them."""

    def __init__(self, proc: Path = Path("/proc"), sys_: Path = Path("/sys")) -> None:
        self.proc, self.sys = proc, sys_

    def read(self, path: Path) -> str:
        """Give a file's text; empty when it is gone or not for us."""
        try:
            with path.open("rb") as file:
                return file.read(_LIMIT).decode(errors="replace")
        except OSError:
            return ""


class People:
    """Whose processes are: asked once for each that is listed, since a process stays in its container."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._known: dict[int, tuple[Owner, str]] = {}
        self._own = self._folders.read(folders.proc / "self" / "cgroup")

    def about(self, pid: int) -> tuple[Owner, str] | None:
        """Give owner and name; None for the agent's own children, which list devices and so take memory for a while."""
        known = self._known.get(pid)
        if known is None:
            folder = self._folders.proc / str(pid)
            cgroup = self._folders.read(folder / "cgroup")
            if cgroup and cgroup == self._own and self._is_ours(folder):
                return None
            known = owner_of(cgroup), self._folders.read(folder / "comm").strip()
            if cgroup:
                self._known[pid] = known
        return known

    def _is_ours(self, folder: Path) -> bool:
        """Tell whether a process in our own group is the agent's: not on a machine without containers."""
        return "paddock.agent" in self._folders.read(folder / "cmdline").replace("\0", " ")

    def keep(self, pids: set[int]) -> None:
        """Forget those that are listed no more: their number may be another's next."""
        self._known = {pid: one for pid, one in self._known.items() if pid in pids}


# --- AMD and Intel -------------------------------------------------------------------------------------------------


class Kfd:
    """AMD's compute driver tells of all processes in /sys/class/kfd."""

    def __init__(self, folders: Folders) -> None:
        self._folders, self._base = folders, folders.sys / "class" / "kfd" / "kfd"
        self.cards: dict[str, str] = {}
        for node in sorted((self._base / "topology" / "nodes").glob("*")):
            number = folders.read(node / "gpu_id").strip()
            card = kfd_card(folders.read(node / "properties"))
            if card is not None and number not in ("", "0"):
                self.cards[number] = card

    def look(self) -> list[Card]:
        """Give each card with its processes."""
        found: dict[str, dict[int, int]] = {card: {} for card in self.cards.values()}
        for folder in (self._base / "proc").glob("[0-9]*") if self.cards else ():
            texts = {file.name: self._folders.read(file) for file in folder.glob("vram_*")}
            for card, size in kfd_memory(texts, self.cards).items():
                if size:
                    found[card][int(folder.name)] = size
        return [{"pci_id": card, "processes": processes, "source": "KFD"} for card, processes in found.items()]


class Drm:
    """Graphics drivers tell of each process in its /proc/PID/fdinfo, readable for processes of the same user only."""

    def __init__(self, folders: Folders, known: Mapping[str, str]) -> None:
        self._folders = folders
        self.cards = [card for card in self._find() if card not in known.values()]

    def _find(self) -> Iterator[str]:
        for device in sorted((self._folders.sys / "class" / "drm").glob("renderD*")):
            link = device / "device"
            if (link / "driver").resolve().name in _DRM:
                yield link.resolve().name.lower()

    def look(self) -> list[Card]:
        """Give each card with the processes of our own user: the servers' is the same."""
        found: dict[str, dict[int, int]] = {card: {} for card in self.cards}
        for folder in self._folders.proc.glob("[0-9]*") if self.cards else ():
            try:
                if folder.stat().st_uid == os.geteuid():
                    sizes = drm_memory(self._folders.read(file) for file in list((folder / "fdinfo").iterdir()))
                    for card in sizes.keys() & found.keys():
                        if sizes[card]:
                            found[card][int(folder.name)] = sizes[card]
            except OSError:
                continue  # it ended meanwhile
        return [{"pci_id": card, "processes": processes, "source": "DRM"} for card, processes in found.items()]


# --- what is told --------------------------------------------------------------------------------------------------


class Memory:
    """What was told last, so that numbers which move a little are not told each time."""

    def __init__(self) -> None:
        self._told: dict[tuple[object, ...], Told] = {}
        self._seen: set[tuple[object, ...]] = set()

    def step(self, value: int | None, *key: object) -> int | None:
        """Give the number to tell for what is at hand."""
        if value is None:
            return None
        self._seen.add(key)
        self._told[key] = follow(self._told.get(key), value)
        return self._told[key].told

    def tidy(self) -> None:
        """Forget what was not asked about since the last call."""
        self._told = {key: told for key, told in self._told.items() if key in self._seen}
        self._seen = set()


class Troubles:
    """Errors of cards, each held for a while after it was seen last."""

    def __init__(self, clock: Clock = time.monotonic, hold: float = HOLD) -> None:
        self._clock, self._hold = clock, hold
        self._until: dict[str, tuple[float, str, str]] = {}
        self._ecc: dict[str, int] = {}
        self._lasting: dict[str, tuple[str, str] | None] = {}

    def xid(self, card: str, number: int) -> None:
        """Note an Xid error; those that programs cause are theirs."""
        if card and number not in OF_PROGRAMS:
            self._until[card] = (self._clock() + self._hold, "Xid", f"the driver told of {xid_in_words(number)}")

    def look(self, found: Card) -> tuple[str, str] | None:
        """Give code and message of what is wrong with a card now."""
        card = found["pci_id"]
        if "ecc" in found:
            self._lasting[card] = self._counters(card, found)
        now = found.get("trouble") or self._lasting.get(card)
        until, code, message = self._until.get(card, (0.0, "", ""))
        return now or ((code, message) if self._clock() < until else None)

    def _counters(self, card: str, found: Card) -> tuple[str, str] | None:
        errors, before = found["ecc"], self._ecc.get(card)
        if errors is not None:
            self._ecc[card] = errors
            if before is not None and errors > before:
                message = f"{errors - before} uncorrectable memory errors, {errors} since the driver was loaded"
                self._until[card] = (self._clock() + self._hold, "EccError", message)
        rows, action = found["rows"], found["recovery"]
        if rows and rows[3]:
            return "NeedsReset", "a row of its memory could not be replaced"
        if rows and rows[2]:
            return "NeedsReset", "a row of its memory is replaced at the next reset"
        if action:
            return "NeedsReset", f"the driver asks for {RECOVERY.get(action, f'recovery action {action}')}"
        return None


class Watch:
    """All sources, and what is to be told of them."""

    def __init__(self, folders: Folders, session: Session | None, *, processes: bool, hold: float = HOLD) -> None:
        self._session, self._processes = session, processes
        self._people, self._memory, self.troubles = People(folders), Memory(), Troubles(hold=hold)
        kfd = Kfd(folders) if processes else None
        drm = Drm(folders, kfd.cards) if kfd is not None else None
        self._others = [one for one in (kfd, drm) if one is not None and one.cards]
        self._looks = 0
        self._own: dict[str, int] = {}
        """Bytes that the agent's listing has on each card while it runs: nobody else has to do without them."""

    @property
    def useful(self) -> bool:
        """Whether there is anything to watch."""
        return self._session is not None or bool(self._others)

    def look(self) -> dict[str, Any]:
        """Take one look at everything; gives what the agent is told."""
        cards = self._session.look(thorough=self._looks % THOROUGH == 0) if self._session is not None else []
        self._looks += 1
        uses = [self._use(one, "NVML") for one in cards if one["processes"] is not None]
        uses += [self._use(one, one["source"]) for source in self._others for one in source.look()]
        self._people.keep({process["pid"] for use in uses for process in use["processes"]})
        self._memory.tidy()
        troubles = [(one["pci_id"], self.troubles.look(one)) for one in cards]
        return {
            "cards": [
                {"pci_id": one["pci_id"], "total": one["total"], "free": self._free(one)}
                for one in cards
                if one["total"]
            ],
            "uses": uses if self._processes else None,
            "troubles": [
                {"pci_id": card, "code": found[0], "message": found[1]} for card, found in troubles if found is not None
            ],
            "lost": self._session.lost if self._session is not None else [],
        }

    def _free(self, card: Card) -> int | None:
        free = None if card["free"] is None else card["free"] + self._own.get(card["pci_id"], 0)
        return self._memory.step(free, card["pci_id"], "free")

    def _use(self, card: Card, source: str) -> dict[str, Any]:
        pci, total, free = card["pci_id"], card.get("total"), card.get("free")
        processes, own = [], 0
        for pid in sorted(card["processes"] if self._processes else ()):
            about = self._people.about(pid)
            if about is None:
                own += card["processes"][pid] or 0
                continue
            size = self._memory.step(card["processes"][pid], pci, pid)
            owner, command = about
            processes.append(
                {"pid": pid, "bytes": size, "pod": owner.pod, "container": owner.container, "command": command}
            )
        self._own[pci] = own
        used = self._memory.step(total - free - own, pci, "used") if total and free is not None else None
        return {"pci_id": pci, "source": source, "complete": source != "DRM", "used": used, "processes": processes}


def main(argv: list[str]) -> int:
    """Watch until the agent is gone."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    try:
        session = Session()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        session = None
    numbers = [float(one) for one in argv if not one.startswith("-")]
    watch = Watch(Folders(), session, processes="--processes" in argv, hold=[*numbers, HOLD][1])
    if not watch.useful:
        return NOTHING_TO_WATCH
    return _run(watch, session, numbers[0], answer_to)


def _run(watch: Watch, session: Session | None, interval: float, out: int) -> int:
    said, beat = "", 0.0
    while True:
        cost = time.process_time()
        text = json.dumps(watch.look(), separators=(",", ":"))
        now = time.monotonic()
        if text != said or now - beat >= BEAT:
            try:
                _write(out, text.encode() + b"\n")
            except BrokenPipeError:
                return 0
            said, beat = text, now
        cost = time.process_time() - cost
        pause = min(LONGEST, max(interval, cost / MOST_SHARE))
        if session is None:
            time.sleep(pause)
        elif (event := session.wait(pause)) is not None:
            watch.troubles.xid(*event)


def _write(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
