"""What NVIDIA's driver says about its cards; the only module that imports pynvml.

It runs in the short-lived child process, so it imports nothing of the project, and hands back plain values for JSON.
"""

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
    problems: list[str] = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(_read_card(nvml, nvml.nvmlDeviceGetHandleByIndex(number)))
        except nvml.NVMLError as error:
            problems.append(f"card {number} cannot be read: {error}")
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
    }


def _ask(nvml: Any, question: Callable[..., Any], *args: Any) -> Any:
    """Call one function of NVML; None where this card or this driver does not know the answer."""
    try:
        return question(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None
