"""Every kind of device, from what ggml's registry and the driver list to what placement does with it."""

from typing import Any

import pytest

from paddock.api.modeldeployment import AllowIntegrated, Policy
from paddock.api.report import NodeReport
from paddock.api.vocabulary import Verdict
from paddock.core.devices import DriverEntry, RegistryEntry, list_devices
from paddock.core.fleet import Fleet, Node, device_of
from paddock.core.inventory import observe
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from support.builders import GIB

GPU, IGPU = 1, 2
PCI, OTHER = "0000:01:00.0", "0000:02:00.0"
CARD = DriverEntry(pci_id=PCI, uuid="GPU-1", total=8 * GIB, free=8 * GIB)


def entry(name: str, registry: str, pci: str | None, kind: int = GPU, **more: Any) -> RegistryEntry:
    values: dict[str, Any] = {"description": "A card", "total": 8 * GIB, "free": 8 * GIB} | more
    return RegistryEntry(name, registry=registry, registry_id=hash(registry), type=kind, device_id=pci, **values)


def seen(*entries: RegistryEntry, driver: tuple[DriverEntry, ...] = ()) -> Fleet:
    """Give the fleet of one node that lists these."""
    report = NodeReport(devices=list_devices(list(entries), list(driver)))
    known = observe("node1", report, "2026-01-01T00:00:00Z")
    return Fleet({"node1": Node("node1")}, tuple(device_of(name, status) for name, status in known.items()))


def verdicts(where: Fleet, **wish: Any) -> dict[str, Verdict]:
    found = place(Request(need=GIB, policy=Policy.BEST_FIT, **wish), where)
    return {one.device.name: one.verdict for one in found.judged}


def test_a_card_that_two_backends_see_is_one_device() -> None:
    where = seen(entry("CUDA0", "CUDA", PCI), entry("Vulkan0", "Vulkan", PCI), driver=(CARD,))
    assert verdicts(where) == {"CUDA0": Verdict.CHOSEN}


def test_a_card_that_is_cut_into_mig_slices_is_listed_and_given_to_nobody() -> None:
    cut = DriverEntry(pci_id=PCI, uuid="GPU-1", total=8 * GIB, free=8 * GIB, partitioned=True)
    where = seen(entry("CUDA0", "CUDA", PCI), entry("CUDA1", "CUDA", OTHER, total=2 * GIB), driver=(cut, other_card()))
    assert verdicts(where) == {"CUDA0": Verdict.NOT_READY, "CUDA1": Verdict.CHOSEN}


def test_parts_of_one_card_are_devices_of_their_own_with_memory_of_their_own() -> None:
    parts = [entry(f"CUDA{number}", "CUDA", f"{PCI}-v{number}", total=4 * GIB) for number in range(2)]
    where = seen(*parts, driver=(CARD,))
    assert [(one.name, one.total, one.uuid) for one in where.devices] == [
        ("CUDA0", 4 * GIB, None),
        ("CUDA1", 4 * GIB, None),
    ]
    assert len({one.gpu for one in where.devices}) == 2


def test_a_device_of_another_machine_is_not_taken_however_large() -> None:
    far = entry("RPC0", "RPC", None, total=64 * GIB, free=64 * GIB, description="10.0.0.1:50052")
    assert verdicts(seen(far, entry("CUDA0", "CUDA", PCI), driver=(CARD,))) == {
        "RPC0": Verdict.TYPE_NOT_ALLOWED,
        "CUDA0": Verdict.CHOSEN,
    }
    assert not isinstance(place(Request(need=GIB), seen(far)), Placement)


@pytest.mark.parametrize(
    ("wish", "verdict"),
    [(AllowIntegrated.AUTO, Verdict.CHOSEN), (AllowIntegrated.NEVER, Verdict.TYPE_NOT_ALLOWED)],
)
def test_a_machine_with_one_memory_serves_only_where_integrated_devices_are_allowed(
    wish: AllowIntegrated, verdict: Verdict
) -> None:
    """CUDA calls the GPU of such a machine integrated; its driver gives it a UUID all the same."""
    where = seen(entry("CUDA0", "CUDA", PCI, IGPU, total=120 * GIB, free=100 * GIB), driver=(CARD,))
    assert verdicts(where, allow_integrated=wish) == {"CUDA0": verdict}


def test_look_alikes_without_any_id_are_given_to_nobody() -> None:
    twins = [entry(f"Vulkan{number}", "Vulkan", None) for number in range(2)]
    assert set(verdicts(seen(*twins)).values()) == {Verdict.AMBIGUOUS}


def other_card() -> DriverEntry:
    return DriverEntry(pci_id=OTHER, uuid="GPU-2", total=2 * GIB, free=2 * GIB)
