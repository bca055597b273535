"""Dynamic resource allocation: which device of a driver is which card, one claim for one card, and what came of it.

A claim selects by the UUID or the PCI address. Names of devices in ResourceSlices go by position and may change
with a boot: none is ever asked for, they only tell what was allocated.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paddock.api.vocabulary import Label

GROUP_PATH = "/apis/resource.k8s.io/v1"
CLAIM_IN_POD = "gpu"
"""Name of the claim within the pod, and of the only request within the claim."""
STANDARD = "resource.kubernetes.io"
"""Domain of the attributes that mean the same for all drivers."""
MOST_NAME = 63
_PLAIN = re.compile(r"[A-Za-z0-9:._/-]{1,64}")
"""What may be written into an expression; no identifier has anything else."""


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device that a driver offers on a node."""

    driver: str
    pool: str
    device: str
    """Its name in the pool."""
    uuid: str | None = None
    """As the driver spells it."""
    pci_id: str | None = None
    """As the driver spells it."""
    pci_attribute: str = f"{STANDARD}/pciBusID"
    """Which attribute has the PCI address."""

    @property
    def place(self) -> tuple[str, str, str]:
        """By what allocations name it."""
        return self.driver, self.pool, self.device


def slices_by_node(slices: Iterable[Mapping[str, Any]]) -> dict[str, tuple[SliceDevice, ...]]:
    """Read ResourceSlices: what each node's drivers offer. Of a pool only the newest generation counts."""
    newest: dict[tuple[str, str], int] = {}
    for one in slices:
        pool = one["spec"]["pool"]
        key = (one["spec"]["driver"], pool["name"])
        newest[key] = max(newest.get(key, 0), pool.get("generation", 0))
    found: dict[str, list[SliceDevice]] = {}
    for one in slices:
        spec, pool = one["spec"], one["spec"]["pool"]
        if spec.get("nodeName") and pool.get("generation", 0) == newest[spec["driver"], pool["name"]]:
            devices = (_device(spec["driver"], pool["name"], each) for each in spec.get("devices") or ())
            found.setdefault(spec["nodeName"], []).extend(devices)
    return {node: tuple(sorted(devices, key=lambda one: one.place)) for node, devices in found.items()}


def _device(driver: str, pool: str, body: Mapping[str, Any]) -> SliceDevice:
    attributes = {
        name if "/" in name else f"{driver}/{name}": value.get("string")
        for name, value in (body.get("attributes") or {}).items()
    }
    spelled = (f"{STANDARD}/pciBusID", f"{driver}/pciBusID", f"{driver}/pciAddr")
    where = next((one for one in spelled if one in attributes), spelled[0])
    uuid, pci_id = attributes.get(f"{driver}/uuid"), attributes.get(where)
    return SliceDevice(driver, pool, body["name"], _plain(uuid), _plain(pci_id), where)


def _plain(text: str | None) -> str | None:
    return text if text and _PLAIN.fullmatch(text) else None


def offered(uuid: str | None, pci_id: str | None, offers: Iterable[SliceDevice]) -> SliceDevice | None:
    """Give the device of a driver that is this card: by its UUID, or else by its PCI address; None when there is none.

    Two that look like it are none: which one a claim would get is nobody's choice.
    """
    found = [one for one in offers if _same(one, uuid, pci_id)]
    return found[0] if len(found) == 1 else None


def selector(wanted: SliceDevice) -> str:
    """Give the expression that only this device meets; one that lacks the attribute is no error, but is passed over."""
    domain, name, value = wanted.driver, "uuid", wanted.uuid
    if value is None:
        domain, _, name = wanted.pci_attribute.partition("/")
        value = wanted.pci_id or ""
    attributes = f'device.attributes["{domain}"]'
    return f'device.driver == "{wanted.driver}" && "{name}" in {attributes} && {attributes}["{name}"] == "{value}"'


def claim_name(pod: str, salt: str) -> str:
    """Give a claim's name: another one for each pod that is made, so that none gets what a former one was given."""
    return f"{pod[: MOST_NAME - len(salt) - 1]}-{salt}"


def claim(name: str, pod: Mapping[str, Any], deployment: str, wanted: SliceDevice, device_class: str) -> dict[str, Any]:
    """Build the claim of a pod that exists: it goes with the pod."""
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    exactly = {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": selector(wanted)}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {Label.DEPLOYMENT: deployment, Label.MANAGED_BY: "paddock"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [{"name": CLAIM_IN_POD, "exactly": exactly}]}},
    }


def allocated(body: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...] | None:
    """Give what a claim was given, as (driver, pool, device); None while it was given nothing."""
    allocation = (body.get("status") or {}).get("allocation")
    if not allocation:
        return None
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple((one["driver"], one["pool"], one["device"]) for one in results)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was allocated, beside the card that was chosen."""

    same: bool | None
    """None: no ResourceSlice tells which card that is."""
    message: str


def compare(
    given: tuple[tuple[str, str, str], ...], offers: Iterable[SliceDevice], uuid: str | None, pci_id: str | None
) -> Comparison:
    """Compare what a claim was given with the card that was chosen."""
    known = {one.place: one for one in offers}
    found = [known.get(place) for place in given]
    told = f"its claim was given {' and '.join(map(_tell, given, found)) or 'no device'}"
    if len(found) == 1 and found[0] is not None and _same(found[0], uuid, pci_id):
        return Comparison(True, told)
    if len(found) == 1 and found[0] is None:
        return Comparison(None, told)
    return Comparison(False, f"{told}; the model belongs on {_words(uuid, pci_id)}")


def _same(one: SliceDevice, uuid: str | None, pci_id: str | None) -> bool:
    if one.uuid and uuid:
        return one.uuid.lower() == uuid.lower()
    return bool(one.pci_id and pci_id and one.pci_id.lower() == pci_id.lower())


def _tell(place: tuple[str, str, str], one: SliceDevice | None) -> str:
    driver, pool, device = place
    words = _words(one.uuid, one.pci_id) if one is not None else "which no ResourceSlice has now"
    return f"{device} of {driver} on {pool} ({words})"


def _words(uuid: str | None, pci_id: str | None) -> str:
    return " at ".join(filter(None, (uuid, pci_id))) or "a card without identifier"
