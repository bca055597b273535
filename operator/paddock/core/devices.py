"""From ggml's device registry and the driver's own list to the devices that a node reports.

Three questions are answered here, all without I/O: which devices would llama.cpp itself offload to, and in which order
(`offload_list`); which entries are one and the same card seen through two backends (`find_duplicates`); and what the
driver adds to an entry (`list_devices`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.api.bus import Bus
from paddock.api.report import GgmlType, ListedDevice
from paddock.api.vocabulary import GRANULE

_TYPES: dict[int, GgmlType] = {0: GgmlType.CPU, 1: GgmlType.GPU, 2: GgmlType.IGPU, 3: GgmlType.ACCEL}
"""The numbers of ggml's enum. META (4) exists only inside a running server, never in the registry."""

_RPC = "RPC"
_SURVIVORS = ("CUDA", "ROCm", "MUSA", "SYCL", "CANN", "OpenCL", "Vulkan")
"""Of two entries for one card, the backend that stands further left is kept: it is the faster one there."""

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])(-v\d+)?", re.IGNORECASE)
_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
_BRACKETS = re.compile(r"\([^()]*\)")
_NOT_WORD = re.compile(r"[^a-z0-9]+")

_SAME_SIZE = 0.05
"""Two backends subtract different things from a card's memory; up to this share they still mean the same card."""
_SLACK = GRANULE // 8
"""Free memory must pass a step by this much before it is reported as risen, so that it does not flap around one."""


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One device as ggml's registry gives it."""

    name: str
    description: str
    registry: str
    """Name of the backend, for example CUDA."""
    registry_id: int
    """Tells two backends of the same name apart: the address of the backend's registry."""
    type: int
    """Number of ggml's device type."""
    total: int
    """Bytes; 0 when the backend could not read it."""
    free: int
    """Bytes, after the listing's own context was made."""
    device_id: str | None = None
    """As the backend spells it; None when it has none."""


@dataclass(frozen=True, slots=True)
class DriverEntry:
    """One card as NVML gives it, read before anything made a context on it."""

    pci_id: str
    uuid: str | None = None
    name: str | None = None
    total: int | None = None
    """Bytes; None where the driver does not say, as with memory shared with the host."""
    free: int | None = None
    """Bytes."""
    compute_capability: str | None = None
    bus_width: int | None = None
    """Bits."""
    memory_clock: int | None = None
    """MHz, the highest that the card runs at."""
    partitioned: bool = False
    """The card is cut into MIG slices; its own id and memory are then no slice's."""
    link: Mapping[str, int | None] | None = None
    """Generation and width of its PCIe link, and their maxima."""
    peers: Sequence[Mapping[str, Any]] = ()
    """The ways to other cards of the node."""


def normalise_pci(text: str | None) -> str | None:
    """Spell a PCI address as Paddock does, `0000:c1:00.0`; None if it is not one.

    The suffix that ggml gives to virtual CUDA devices (`-v1`) is kept, since it tells them apart.
    """
    found = _PCI.fullmatch((text or "").strip())
    if found is None:
        return None
    domain, bus, slot, function, virtual = found.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{slot.lower()}.{function}{(virtual or '').lower()}"


def offload_list(entries: Sequence[RegistryEntry]) -> list[int]:
    """Give the positions of the entries that llama.cpp would offload to, in its order, when told nothing.

    Remote devices come first; a discrete one is dropped when an earlier one has the same id, whatever its backend;
    integrated ones count only when no discrete one exists, and only those of the first backend that has any.
    """
    remote: list[int] = []
    discrete: list[int] = []
    integrated: list[int] = []
    taken: set[str] = set()
    for position, entry in enumerate(entries):
        kind = _TYPES.get(entry.type)
        if kind is GgmlType.IGPU:
            if not integrated or entries[integrated[0]].registry_id == entry.registry_id:
                integrated.append(position)
        elif kind is GgmlType.GPU and entry.registry == _RPC:
            remote.append(position)
        elif kind is GgmlType.GPU and (entry.device_id is None or entry.device_id not in taken):
            discrete.append(position)
            taken.update(() if entry.device_id is None else (entry.device_id,))
    return remote + (discrete or integrated)


def memory_bandwidth(bus_width: int | None, memory_clock: int | None) -> int | None:
    """Give a card's peak bytes per second from its bus in bits and its memory clock in MHz; None when unknown.

    Two transfers per clock: NVML states the clock of all current memories so that this holds.
    """
    if not bus_width or not memory_clock:
        return None
    return bus_width * memory_clock * 1_000_000 * 2 // 8


def find_duplicates(entries: Sequence[RegistryEntry]) -> dict[int, int]:
    """Map each entry that is the same card as one of another backend to the entry that is kept.

    Entries of one backend are never merged: with equal PCI ids they are slices or virtual devices of one card.
    """
    kept: list[int] = []
    merged: dict[int, int] = {}
    matched: set[tuple[int, str]] = set()
    local = [p for p, entry in enumerate(entries) if _is_local_gpu(entry)]
    for position in sorted(local, key=lambda p: (_rank(entries[p].registry), p)):
        entry = entries[position]
        others = [k for k in kept if entries[k].registry != entry.registry]
        twin = next((k for k in others if _same_card(entry, entries[k])), None)
        if twin is None:
            twin = next(
                (k for k in others if (k, entry.registry) not in matched and _may_be_same(entry, entries[k])), None
            )
        if twin is None:
            kept.append(position)
        else:
            merged[position] = twin
            matched.add((twin, entry.registry))
    return merged


def list_devices(
    entries: Sequence[RegistryEntry],
    cards: Iterable[DriverEntry] = (),
    previous: Iterable[ListedDevice] = (),
    buses: Mapping[str, Bus] | None = None,
) -> list[ListedDevice]:
    """Build the devices of a report, in registry order and without the CPU.

    `previous` is the last report's list: free memory stays as reported there until it has clearly risen; `buses` tells
    by PCI address where cards are plugged in.
    """
    index = {position: number for number, position in enumerate(offload_list(entries))}
    merged = find_duplicates(entries)
    ambiguous = _find_ambiguous(entries, merged)
    by_pci = {pci: card for card in cards if (pci := normalise_pci(card.pci_id))}
    before = {_key(device): device.memory_free for device in previous}
    seen: dict[str, int] = {}
    devices: list[ListedDevice] = []
    for position, entry in enumerate(entries):
        kind = _TYPES.get(entry.type)
        if kind is None or kind is GgmlType.CPU:
            continue
        raw_index = seen.get(entry.registry, 0)
        seen[entry.registry] = raw_index + 1
        device = ListedDevice(
            name=entry.name,
            description=entry.description,
            backend=entry.registry,
            type=kind,
            raw_index=raw_index,
            index=index.get(position),
            duplicate_of=entries[merged[position]].name if position in merged else None,
            ambiguous=position in ambiguous,
            pci_id=normalise_pci(entry.device_id),
            bus=None if entry.registry == _RPC else (buses or {}).get(_card_of(entry) or ""),
        )
        card = None if entry.registry == _RPC else by_pci.get(_card_of(entry) or "")
        facts = _join(entry, card, is_slice=_is_slice(entry, entries))
        facts["memory_free"] = _settle(facts["memory_free"], before.get(_key(device)))
        devices.append(device.model_copy(update=facts))
    return devices


def _key(device: ListedDevice) -> tuple[str, int, str | None]:
    return device.backend, device.raw_index, device.pci_id


def _is_local_gpu(entry: RegistryEntry) -> bool:
    return _TYPES.get(entry.type) in (GgmlType.GPU, GgmlType.IGPU) and entry.registry != _RPC


def _rank(registry: str) -> int:
    return _SURVIVORS.index(registry) if registry in _SURVIVORS else len(_SURVIVORS)


def _card_of(entry: RegistryEntry) -> str | None:
    """Give the PCI address of the card that the entry is, or is a part of."""
    pci = normalise_pci(entry.device_id)
    return pci and pci.partition("-")[0]


def _same_card(a: RegistryEntry, b: RegistryEntry) -> bool:
    card = _card_of(a)
    return card is not None and card == _card_of(b)


def _may_be_same(a: RegistryEntry, b: RegistryEntry) -> bool:
    """Tell whether two entries look like one card, when just one of them has an id."""
    return (_card_of(a) is None) != (_card_of(b) is None) and _look_alike(a, b)


def _look_alike(a: RegistryEntry, b: RegistryEntry) -> bool:
    words = _words(a.description)
    if not words or words != _words(b.description) or not a.total or not b.total:
        return False
    return abs(a.total - b.total) <= _SAME_SIZE * max(a.total, b.total)


def _words(description: str) -> str:
    """Reduce a description to what backends agree on: no trademarks, no bracketed code name, no case."""
    plain = _BRACKETS.sub(" ", _TRADEMARKS.sub(" ", description.casefold()))
    return _NOT_WORD.sub(" ", plain).strip()


def _find_ambiguous(entries: Sequence[RegistryEntry], merged: dict[int, int]) -> set[int]:
    """Find kept entries without an id that another one without an id looks like, or shares its name with."""
    nameless = [
        p for p, entry in enumerate(entries) if p not in merged and _is_local_gpu(entry) and _card_of(entry) is None
    ]
    return {
        p
        for p in nameless
        for q in nameless
        if p != q and (entries[p].name == entries[q].name or _cannot_tell_apart(entries[p], entries[q]))
    }


def _cannot_tell_apart(a: RegistryEntry, b: RegistryEntry) -> bool:
    """Tell whether nothing says that these are two cards; unlike for a merge, unknown memory is no difference."""
    return _look_alike(a, b) or (_words(a.description) == _words(b.description) and not (a.total and b.total))


def _is_slice(entry: RegistryEntry, entries: Sequence[RegistryEntry]) -> bool:
    """Tell whether the entry is only a part of its card."""
    pci = normalise_pci(entry.device_id)
    if pci is None:
        return False
    siblings = sum(other.registry == entry.registry and _same_card(entry, other) for other in entries)
    return siblings > 1 or "-" in pci


def _join(entry: RegistryEntry, card: DriverEntry | None, *, is_slice: bool) -> dict[str, str | int | None]:
    """Give what is known of memory, id and speed: the driver's word where there is one, else the backend's."""
    total: int | None = entry.total or None
    free: int | None = entry.free if total else None
    facts: dict[str, str | int | None] = {}
    if card is not None:
        facts["compute_capability"] = card.compute_capability
    if card is not None and not is_slice and not card.partitioned:
        facts["uuid"] = card.uuid
        facts["memory_bandwidth"] = memory_bandwidth(card.bus_width, card.memory_clock)
        if card.total:
            total, free = card.total, card.free
    if total is None or free is None or not 0 <= free <= total:
        free = None
    return facts | {"memory_total": total, "memory_free": free}


def _settle(observed: str | int | None, before: int | None) -> int | None:
    """Round free memory down to whole steps; a rise counts only once it is well past the step."""
    if not isinstance(observed, int):
        return None
    steps = observed // GRANULE * GRANULE
    if before is not None and steps > before and observed < before + GRANULE + _SLACK:
        return before
    return steps
