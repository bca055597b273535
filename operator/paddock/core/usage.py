"""Who has memory of which card: the texts of Linux and its graphics drivers, read without I/O.

Imports nothing of `api`, since the agent's watching process uses it and is to start fast and stay small.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

STEP: Final = 256 * 1024 * 1024
"""Bytes by which a number must move to be told anew."""
SETTLED: Final = 3
"""Looks in a row with the same number after which it is told exactly, once."""

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:.*-)?pod({_UID})(?:\.slice)?")
_CONTAINER = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_UNITS: Final = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_VRAM = ("vram", "local")
"""How amdgpu, xe and i915 call the memory on the card."""


class Owner(NamedTuple):
    """Whose a process is."""

    pod: str | None = None
    """UID of the pod."""
    container: str | None = None
    """Id of the container."""


def owner_of(cgroup: str) -> Owner:
    """Read /proc/PID/cgroup, version 1 or 2, of any runtime and either cgroup driver.

    The outermost pod of a path counts: a container may name groups inside its own as it likes, but not move out.
    """
    for line in cgroup.splitlines():
        parts = re.split(r"[/:]+", line.split(":", 2)[-1])
        for number, part in enumerate(parts):
            if (found := _POD.fullmatch(part)) is None:
                continue
            below = (_CONTAINER.fullmatch(part) for part in parts[number + 1 : number + 3])
            container = next((one.group(1) for one in below if one), None)
            return Owner(found.group(1).replace("_", "-"), container)
    return Owner()


# --- AMD and Intel -------------------------------------------------------------------------------------------------


def drm_memory(texts: Iterable[str]) -> dict[str, int]:
    """Sum one process' /proc/PID/fdinfo/* to bytes on each card, by PCI address.

    Descriptors of one client on one card share its numbers. `drm-resident-*` goes before the older `drm-memory-*`.
    """
    clients: dict[tuple[str, str], int] = {}
    for number, text in enumerate(texts):
        fields = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("drm-") and ":" in line)
        card = fields.get("drm-pdev", "").strip().lower()
        if card:
            client = fields.get("drm-client-id", f"descriptor {number}").strip()
            clients[card, client] = sum(_regions(fields).values())
    out: dict[str, int] = {}
    for (card, _), size in clients.items():
        out[card] = out.get(card, 0) + size
    return out


def _regions(fields: Mapping[str, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for kind in ("memory", "resident"):
        for key, value in fields.items():
            region = key.removeprefix(f"drm-{kind}-")
            if region != key and region.startswith(_VRAM):
                number, _, unit = value.strip().partition(" ")
                if number.isdecimal() and unit.strip() in _UNITS:
                    sizes[region] = int(number) * _UNITS[unit.strip()]
    return sizes


def kfd_card(properties: str) -> str | None:
    """Give the PCI address of a node of /sys/class/kfd/kfd/topology from its `properties`; None for a processor."""
    fields = dict(line.split(" ", 1) for line in properties.splitlines() if " " in line)
    try:
        location, domain = int(fields.get("location_id", "0")), int(fields.get("domain", "0"))
        if not int(fields.get("simd_count", "0")):
            return None
    except ValueError:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def kfd_memory(files: Mapping[str, str], cards: Mapping[str, str]) -> dict[str, int]:
    """Turn /sys/class/kfd/kfd/proc/PID/vram_GPUID into bytes by PCI address; `cards` maps GPUID to it."""
    out: dict[str, int] = {}
    for name, text in files.items():
        card = cards.get(name.removeprefix("vram_"))
        if name.startswith("vram_") and card is not None and text.strip().isdecimal():
            out[card] = out.get(card, 0) + int(text)
    return out


# --- what is told, and when ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """A number that moves, and what others were told of it last."""

    told: int
    last: int
    same: int = 0
    """Looks in a row that gave `last`."""
    exact: bool = False
    """Whether it was told after it had come to rest; then only a whole step is told again."""


def follow(before: Told | None, now: int) -> Told:
    """Take one more look into account. `told` changes at most twice for every step that the number moves."""
    if before is None or abs(now - before.told) >= STEP:
        return Told(now, now)
    if now != before.last:
        return Told(before.told, now, exact=before.exact)
    same = before.same + 1
    if same >= SETTLED and not before.exact:
        return Told(now, now, same, exact=True)
    return Told(before.told, now, same, before.exact)


# --- faults --------------------------------------------------------------------------------------------------------

OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program causes and that end only that program."""
_XIDS: Final = {
    48: "an uncorrectable memory error",
    62: "a halted controller",
    63: "a row of memory being replaced",
    64: "a row of memory that could not be replaced",
    74: "an error of NVLink",
    79: "the card fell off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "a firmware that does not answer",
    120: "an error of the firmware",
    140: "an unrecovered memory error",
}
RECOVERY: Final = {
    1: "a reset of the card",
    2: "a reboot of the node",
    3: "its peers to be drained",
    4: "to be drained",
}
"""What NVML's recovery action asks for."""


def xid_in_words(number: int) -> str:
    """Say what an Xid error of NVIDIA's driver is."""
    return f"Xid {number}" + (f", {_XIDS[number]}" if number in _XIDS else "")
