"""What the node agent's device plugin offers: one extended resource for each physical GPU, its memory in granules."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paddock.api.report import DeviceTrouble, GgmlType, ListedDevice
from paddock.api.vocabulary import GRANULE

DOMAIN = "gpu.paddock.dev"
"""Domain of the resources' names."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MOST = 16384
"""Granules of one card, 4 TiB: what the kubelet takes in one message is several times that."""
_LONGEST = 63
"""Characters of the part of a resource's name behind the domain."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One GPU, as the plugin is told of it."""

    resource: str
    granules: int
    pci_id: str | None = None
    uuid: str | None = None
    """The driver's identifier: only NVIDIA's gives one."""
    compute: bool = False
    """Whether programs reach it by AMD's compute driver."""
    healthy: bool = True


_RESOURCE = re.compile(re.escape(DOMAIN) + r"/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def sound(offer: Offer) -> bool:
    """Tell whether an offer that another process wrote can be one: nothing in it may lead anywhere but to a GPU."""
    return (
        _RESOURCE.fullmatch(offer.resource) is not None
        and 0 < offer.granules <= _MOST
        and (offer.uuid is None or _UUID.fullmatch(offer.uuid) is not None)
        and (offer.pci_id is None or _ADDRESS.fullmatch(offer.pci_id) is not None)
    )


def resource_of(device: ListedDevice) -> str | None:
    """Give the name of a device's resource, by the most lasting identity that is known; None without one."""
    return resource_named(device.uuid, device.pci_id)


def resource_named(uuid: str | None, pci_id: str | None) -> str | None:
    """Give the name of the resource of the device that these identify; None without an identity."""
    if uuid is not None:
        kind, identity = "uuid", uuid.lower().removeprefix("gpu-")
    elif pci_id is not None:
        kind, identity = "pci", pci_id
    else:
        return None
    plain = _NOT_IN_NAMES.sub("-", identity.lower()).strip("-")
    return f"{DOMAIN}/{kind}-{plain}"[: len(DOMAIN) + 1 + _LONGEST].rstrip("-") if plain else None


def offers_of(
    devices: Iterable[ListedDevice], troubles: Iterable[DeviceTrouble] = (), before: Iterable[Offer] = ()
) -> tuple[Offer, ...]:
    """Give what is offered: every local GPU that pods can be given alone, and in bad health what was there `before`.

    Partitions of a card are not offered: they share its address, and their memory is no card's.
    """
    broken = {one.pci_id for one in troubles}
    local = [
        one
        for one in devices
        if one.type in (GgmlType.GPU, GgmlType.IGPU) and one.duplicate_of is None and one.backend != "RPC"
    ]
    cards = Counter((one.pci_id or "").partition("-")[0] for one in local)
    found: dict[str, Offer] = {}
    for one in local:
        name = resource_of(one)
        if name is None or one.ambiguous or not one.memory_total or cards[(one.pci_id or "").partition("-")[0]] > 1:
            continue
        granules = one.memory_total // GRANULE
        found[name] = Offer(name, granules, one.pci_id, one.uuid, one.backend == "ROCm", one.pci_id not in broken)
    gone = (one for one in before if one.resource not in found)
    lost = {one.resource: Offer(one.resource, one.granules, one.pci_id, one.uuid, one.compute, False) for one in gone}
    return tuple(one for _, one in sorted((lost | found).items()) if sound(one))


_KIND = re.compile(r'"?\bkind"?\s*:\s*"?([\w.-]+/[\w.-]+)"?\s*(?:[,}\n]|$)')
_NAME = re.compile(r'"?\bname"?\s*:\s*"?(GPU-[0-9a-zA-Z-]+)"?\s*(?:[,}\n]|$)')


def cdi_names(specs: Iterable[str]) -> frozenset[str]:
    """Give the names `KIND=UUID` of NVIDIA's cards in texts of CDI specs, which are JSON or YAML.

    Of both it is enough to find the kind and the names: those of cards begin like nothing else in a spec.
    """
    found: set[str] = set()
    for text in specs:
        kind = _KIND.search(text)
        if kind is not None:
            found.update(f"{kind[1]}={name}" for name in _NAME.findall(text))
    return frozenset(found)
