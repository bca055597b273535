"""What NVIDIA's driver says about its cards; the only module that imports pynvml.

It runs in child processes, so it imports nothing of the project, and hands back plain values for JSON.
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PCI_FOLDER = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""Class of display and 3D controllers, which GPUs are; a card's sound device has another one."""


def read_driver(pci_folder: Path = PCI_FOLDER) -> dict[str, Any]:
    """Ask NVML for versions and cards, without making a context on any of them.

    The answer's `state` is `present`, `absent` (no driver, and no card that would need one) or `failed` with a
    `message`; cards that could be read are listed even when others could not.
    """
    try:
        import pynvml  # noqa: PLC0415 - a node without the package still lists its other devices
    except ImportError as error:
        return {"state": "failed", "message": f"the package nvidia-ml-py cannot be imported: {error}"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return _no_library(pci_folder)
    except pynvml.NVMLError as error:
        return {"state": "failed", "message": f"NVML cannot be initialised: {error}"}
    try:
        return _read_cards(pynvml)
    except pynvml.NVMLError as error:
        return {"state": "failed", "message": f"NVML cannot list its devices: {error}"}
    finally:
        pynvml.nvmlShutdown()


def _no_library(pci_folder: Path) -> dict[str, Any]:
    cards = find_cards(pci_folder)
    if not cards:
        return {"state": "absent"}
    message = (
        f"the node has NVIDIA cards ({', '.join(cards)}), but the driver's library libnvidia-ml.so.1 is not in the "
        "agent's container: is the driver installed, and does the pod have NVIDIA's runtime class?"
    )
    return {"state": "failed", "message": message}


def find_cards(pci_folder: Path = PCI_FOLDER) -> list[str]:
    """Give the PCI addresses of NVIDIA's display controllers, as the kernel lists them, driver or not."""
    found = []
    for device in sorted(pci_folder.glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            found.append(device.name)
    return found


def _read_cards(nvml: Any) -> dict[str, Any]:
    cards: list[dict[str, Any]] = []
    handles: list[Any] = []
    problems: list[str] = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            cards.append(_read_card(nvml, handle))
            handles.append(handle)
        except nvml.NVMLError as error:
            problems.append(f"card {number} cannot be read: {error}")
    _read_peers(nvml, cards, handles)
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "state": "failed" if problems else "present",
        "message": "; ".join(problems),
        "driver_version": _ask(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "cards": cards,
    }


def _read_card(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return {
        "pci_id": nvml.nvmlDeviceGetPciInfo(handle).busId,
        "uuid": _ask(nvml, nvml.nvmlDeviceGetUUID, handle),
        "name": _ask(nvml, nvml.nvmlDeviceGetName, handle),
        "total": memory and memory.total,
        "free": memory and memory.free,
        "compute_capability": capability and f"{capability[0]}.{capability[1]}",
        "bus_width": _ask(nvml, nvml.nvmlDeviceGetMemoryBusWidth, handle),
        "memory_clock": _ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
        "partitioned": bool(mig and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE),
        "link": {
            "generation": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            "max_generation": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "width": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            "max_width": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        },
        "peers": [],
    }


_PATHS = {0: "SameBoard", 10: "OneSwitch", 20: "Switches", 30: "HostBridge", 40: "NumaNode", 50: "System"}
"""NVML's levels of topology."""
_LINKED, _UNKNOWN_P2P = 0, 6
"""NVML's status of a way between two cards: it can be used; it cannot be told."""
_READ, _NVLINK = 0, 2
"""NVML's numbers of ways; pynvml 13 has a tuple in place of the first."""


def _read_peers(nvml: Any, cards: list[dict[str, Any]], handles: list[Any]) -> None:
    """Ask for the way between each two cards; what one pair cannot tell hides no other."""
    for card, handle in zip(cards, handles, strict=True):
        for other, there in zip(cards, handles, strict=True):
            if other is card:
                continue
            try:
                level = _ask(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handle, there)
                reads = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handle, there, _READ)
                nvlink = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handle, there, _NVLINK)
            except nvml.NVMLError:
                continue
            card["peers"].append(
                {
                    "pci_id": other["pci_id"],
                    "path": _PATHS.get(level) if level is not None else None,
                    "direct": None if reads in {None, _UNKNOWN_P2P} else reads == _LINKED,
                    "nvlink": None if nvlink in {None, _UNKNOWN_P2P} else nvlink == _LINKED,
                }
            )


# --- where cards are plugged in, by the kernel --------------------------------------------------------------------

_SLOT_FILES = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width", "numa_node")
_ACCELERATOR = "0x12"
"""Class of processing accelerators, as some makers call their cards."""


def read_slots(pci_folder: Path = PCI_FOLDER) -> dict[str, dict[str, Any]]:
    """Give by PCI address what the kernel tells of every GPU, whoever made it: texts, and who is in its IOMMU group."""
    slots: dict[str, dict[str, Any]] = {}
    for device in sorted(pci_folder.glob("*")):
        if not _text(device / "class").startswith((_DISPLAY, _ACCELERATOR)):
            continue
        files = {name: text for name in _SLOT_FILES if (text := _text(device / name))}
        group = device / "iommu_group"
        number = group.resolve().name if group.exists() else ""
        others = [one.name for one in (group / "devices").glob("*")] if number else []
        slots[device.name] = {
            "files": files,
            "group": int(number) if number.isdecimal() else None,
            "others": sorted(one for one in others if one != device.name),
        }
    return slots


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _ask(nvml: Any, question: Callable[..., Any], *args: Any) -> Any:
    """Call one function of NVML; None where this card or this driver does not know the answer."""
    try:
        return question(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


# --- repeated looks ------------------------------------------------------------------------------------------------


class Session:
    """NVML kept open by the watching process. Each card is asked on its own: a lost one must not hide the others."""

    def __init__(self) -> None:
        """Raise OSError where there is no driver that could be watched."""
        try:
            import pynvml  # noqa: PLC0415 - a node without the package still lists its other devices

            pynvml.nvmlInit()
        except (ImportError, OSError) as error:
            raise OSError(f"no NVML: {error}") from error
        except Exception as error:  # pynvml makes a class for each of its errors
            raise OSError(f"NVML cannot be initialised: {error}") from error
        self._nvml: Any = pynvml
        self._cards: list[tuple[str, Any]] = []
        self._events: Any = None
        self.lost: list[str] = []
        """Cards that could not even be opened, in words."""
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                self._cards.append((pynvml.nvmlDeviceGetPciInfo(handle).busId, handle))
            except pynvml.NVMLError as error:
                self.lost.append(f"card {number} cannot be read: {error}")
        self._listen()

    def _listen(self) -> None:
        """Have the driver tell of Xid errors; not every card or driver does."""
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
            for _, handle in self._cards:
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError:
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            self._events = None

    def look(self, *, thorough: bool) -> list[dict[str, Any]]:
        """Ask every card for memory and processes, and now and then (`thorough`) for its errors."""
        return [self._look_at(pci, handle, thorough=thorough) for pci, handle in self._cards]

    def _look_at(self, pci: str, handle: Any, *, thorough: bool) -> dict[str, Any]:
        nvml = self._nvml
        found: dict[str, Any] = {"pci_id": pci, "processes": None, "total": None, "free": None, "trouble": None}
        try:
            memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
            if memory is not None:
                found |= {"total": memory.total, "free": memory.free}
            found["processes"] = self._processes(handle)
            if thorough:
                found |= self._errors(handle)
        except nvml.NVMLError_GpuIsLost as error:
            found["trouble"] = ("Lost", f"the driver says: {error}")
        except nvml.NVMLError as error:
            found["trouble"] = ("Unreadable", f"the driver says: {error}")
        return found

    def _processes(self, handle: Any) -> dict[int, int | None] | None:
        """Give bytes by pid, in the host's numbering; None where the driver lists no processes."""
        nvml = self._nvml
        computing = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if computing is None:
            return None
        drawing = _ask(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()
        out: dict[int, int | None] = {}
        for one in (*computing, *drawing):  # one that does both is on both lists, with the same number
            out[one.pid] = max(out.get(one.pid) or 0, one.usedGpuMemory) if one.usedGpuMemory is not None else None
        return out

    def _errors(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        errors = _ask(
            nvml,
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        rows = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        return {"ecc": errors, "rows": rows and tuple(rows), "recovery": self._recovery(handle)}

    def _recovery(self, handle: Any) -> int | None:
        nvml = self._nvml
        field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = _ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [field]) if field is not None else None
        return values[0].value.uiVal if values and values[0].nvmlReturn == nvml.NVML_SUCCESS else None

    def wait(self, seconds: float) -> tuple[str, int] | None:
        """Wait that long, or until the driver tells of an Xid error: gives the card's PCI address and the number."""
        nvml, began = self._nvml, time.monotonic()
        if self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, max(1, int(seconds * 1000)))
                return self._address(event.device), int(event.eventData)
            except nvml.NVMLError_Timeout:
                return None
            except nvml.NVMLError:
                self._events = None  # it fails at once, again and again, when a card is lost
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        return None

    def _address(self, device: Any) -> str:
        there = ctypes.cast(device, ctypes.c_void_p).value
        return next((pci for pci, one in self._cards if ctypes.cast(one, ctypes.c_void_p).value == there), "")
