"""Memory of GPUs as extended resources in the status of their nodes, where no device plugin counts it.

The scheduler and the kubelet then refuse what would be too much, whoever asks. Nothing is allocated by it: how a pod
gets its device is another matter (`binding`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paddock.api.vocabulary import GRANULE
from paddock.core.fleet import Counted, Device, Node
from paddock.core.offers import DOMAIN, resource_named

SUFFIX = "-granules"
"""Ends the names of these resources: one that a device plugin once had is the kubelet's for minutes after its end."""
_LONGEST = len(DOMAIN) + 1 + 63 - len(SUFFIX)


def is_counted(resource: str) -> bool:
    """Tell whether a resource of a node is one of these."""
    return resource.startswith(f"{DOMAIN}/") and resource.endswith(SUFFIX)


def counted(device: Device, node: Node | None) -> Device:
    """Give a device with what it is called in its node's status; unchanged where something else counts it.

    A device plugin or a driver for dynamic resource allocation does, or there is no lasting name or no known memory.
    """
    name = _resource(device)
    if name is None or device.offer is not None or node is None:
        return device
    return replace(device, counted=Counted(name, node.granules.get(name, 0) > 0))


def _resource(device: Device) -> str | None:
    """Give the name of a device's resource; None where its node's status has not to count it."""
    if device.plugin is not None or not device.total or device.ambiguous:
        return None
    name = resource_named(device.uuid, device.pci_id)
    return None if name is None else name[:_LONGEST].rstrip("-") + SUFFIX


def wanted(devices: Iterable[Device]) -> dict[str, int]:
    """Give the resources of one node, and how many granules of each there are."""
    found: dict[str, int] = {}
    for device in devices:
        name = _resource(device)
        if name is not None and device.offer is None:
            found[name] = (device.total or 0) // GRANULE
    return found


def difference(there: Mapping[str, int], want: Mapping[str, int]) -> dict[str, str | None]:
    """Give what has to be changed of these resources in a node's capacity, as a merge patch."""
    gone: dict[str, str | None] = dict.fromkeys(sorted(set(there) - set(want)))
    return gone | {name: str(count) for name, count in sorted(want.items()) if there.get(name) != count}
