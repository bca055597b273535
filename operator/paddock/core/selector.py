"""Which devices a selector means, and which of its parts excludes one."""

import re
from collections.abc import Mapping

from paddock.api.gpu import DeviceType
from paddock.api.selector import DeviceSelector, Preference, Vendor
from paddock.core.fleet import Device, Node
from paddock.core.quantity import human, parse_quantity

_BY_BACKEND = {
    "CUDA": Vendor.NVIDIA,
    "ROCm": Vendor.AMD,
    "MUSA": Vendor.MOORE_THREADS,
    "SYCL": Vendor.INTEL,
}
_BY_WORD = (
    (re.compile(r"\b(nvidia|geforce|quadro|tesla)\b", re.IGNORECASE), Vendor.NVIDIA),
    (re.compile(r"\b(amd|radeon|instinct)\b", re.IGNORECASE), Vendor.AMD),
    (re.compile(r"\bintel\b", re.IGNORECASE), Vendor.INTEL),
    (re.compile(r"\b(moore threads|mtt)\b", re.IGNORECASE), Vendor.MOORE_THREADS),
)


def vendor_of(device: Device) -> Vendor | None:
    """Give a device's maker: by its backend, else by what it calls itself; None when neither tells."""
    if device.type is DeviceType.REMOTE:
        return None
    known = _BY_BACKEND.get(device.backend)
    if known is not None:
        return known
    return next((vendor for word, vendor in _BY_WORD if word.search(device.description)), None)


def mismatch(selector: DeviceSelector, device: Device, node: Node | None) -> str | None:
    """Give the first part of a selector that excludes a device, in words; None when the device is meant."""
    for part in (_kind, _memory, _capability, _address, _labels):
        words = part(selector, device, node)
        if words is not None:
            return words
    return None


def weight_of(preferences: tuple[Preference, ...], device: Device, node: Node | None) -> int:
    """Give how much a device is preferred: the sum of the weights of all preferences that mean it."""
    return sum(one.weight for one in preferences if mismatch(one.selector, device, node) is None)


def matches(pattern: str, text: str) -> bool:
    """Tell whether a text is like a pattern, in which `*` is any text and `?` one character; case does not matter.

    Takes at most the product of both lengths in steps, whatever the pattern: users write them. Only the last star seen
    is ever tried again, one character further.
    """
    pattern, text = pattern.lower(), text.lower()
    at, star, tried = 0, -1, 0
    position = 0
    while position < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, tried = at, position
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[position]):
            at += 1
            position += 1
        elif star >= 0:
            tried += 1
            at, position = star + 1, tried
        else:
            return False
    return not pattern[at:].strip("*")


def normal_pci_id(text: str) -> str:
    """Give a PCI address as ggml writes it: lower case, a domain of at least four digits."""
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _kind(selector: DeviceSelector, device: Device, _: Node | None) -> str | None:
    if selector.vendors and vendor_of(device) not in selector.vendors:
        return f"vendor {vendor_of(device) or 'unknown'} is not one of {', '.join(selector.vendors)}"
    if selector.backends and device.backend not in selector.backends:
        return f"backend {device.backend} is not one of {', '.join(selector.backends)}"
    if selector.names and not any(matches(one, device.description) for one in selector.names):
        return f"its name is not like {' or '.join(selector.names)}"
    return None


def _memory(selector: DeviceSelector, device: Device, _: Node | None) -> str | None:
    total = device.total or 0
    if selector.min_memory is not None and total < int(parse_quantity(selector.min_memory)):
        return f"it has {human(total)} in all, less than minMemory {selector.min_memory}"
    if selector.max_memory is not None and total > int(parse_quantity(selector.max_memory)):
        return f"it has {human(total)} in all, more than maxMemory {selector.max_memory}"
    return None


def _capability(selector: DeviceSelector, device: Device, _: Node | None) -> str | None:
    least, most = selector.min_compute_capability, selector.max_compute_capability
    if least is None and most is None:
        return None
    has = _version(device.compute_capability)
    if has is None:
        return "it has no compute capability"
    if least is not None and has < (_version(least) or ()):
        return f"compute capability {device.compute_capability} is below {least}"
    if most is not None and has > (_version(most) or ()):
        return f"compute capability {device.compute_capability} is above {most}"
    return None


def _address(selector: DeviceSelector, device: Device, _: Node | None) -> str | None:
    if selector.pci_ids and device.pci_id not in {normal_pci_id(one) for one in selector.pci_ids}:
        return f"PCI address {device.pci_id or 'unknown'} is not one of {', '.join(selector.pci_ids)}"
    return None


def _labels(selector: DeviceSelector, device: Device, node: Node | None) -> str | None:
    missing = _missing(selector.node_labels, node.labels if node is not None else {})
    if missing:
        return f"the node lacks {missing}"
    missing = _missing(selector.gpu_labels, device.labels)
    return f"the GPU lacks {missing}" if missing else None


def _missing(wanted: Mapping[str, str], there: Mapping[str, str]) -> str:
    return ", ".join(sorted(f"{key}={value}" for key, value in wanted.items() if there.get(key) != value))


def _version(text: str | None) -> tuple[int, ...] | None:
    """Give a compute capability as numbers; None when it is none."""
    parts = (text or "").split(".")
    return tuple(int(one) for one in parts) if all(one.isdecimal() for one in parts) else None
