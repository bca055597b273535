"""Where a card is plugged in, from the kernel's texts and NVML's answers."""

import pytest

from paddock.api.bus import Bus, Pcie, Peer
from paddock.core.bus import from_driver, join, settle, slot_of

FILES = {
    "current_link_speed": "2.5 GT/s PCIe",
    "max_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "8",
    "max_link_width": "16",
    "numa_node": "1",
}


def test_a_slot_is_read() -> None:
    found = slot_of(FILES, 14, ["0000:01:00.1", "0000:02:00.0"], "0000:01:00.0")
    assert found == Bus(
        pcie=Pcie(generation=1, max_generation=4, width=8, max_width=16),
        numa_node=1,
        iommu_group=14,
        iommu_shared=["0000:02:00.0"],
    )


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("5.0 GT/s PCIe", 2),
        ("8.0 GT/s", 3),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("", None),
    ],
)
def test_speeds_are_generations(speed: str, generation: int | None) -> None:
    found = slot_of({**FILES, "max_link_speed": speed}).pcie
    assert found is not None
    assert found.max_generation == generation


def test_what_the_kernel_does_not_know_is_left_out() -> None:
    files = {"current_link_width": "0", "max_link_width": "255", "numa_node": "-1", "current_link_speed": "Unknown"}
    assert slot_of(files) == Bus()


def test_the_driver_goes_first_and_the_kernel_fills_in() -> None:
    driver = from_driver({"generation": 3, "max_generation": None}, [{"pci_id": "0000:02:00.0", "path": "OneSwitch"}])
    both = join(slot_of(FILES), driver)
    assert both is not None
    assert both.pcie == Pcie(generation=3, max_generation=4, width=8, max_width=16)
    assert both.numa_node == 1
    assert both.peers == [Peer(pci_id="0000:02:00.0", path="OneSwitch")]
    assert join(None, driver) == driver
    assert join(slot_of(FILES), None) == slot_of(FILES)


def test_a_card_that_idles_is_not_a_slower_one() -> None:
    busy = Bus(pcie=Pcie(generation=4, max_generation=4, width=16, max_width=16), peers=[Peer(pci_id="x")])
    idle = Bus(pcie=Pcie(generation=1, max_generation=4, width=16, max_width=16))
    assert settle(busy, idle) == busy
    assert settle(idle, busy) == busy
    assert settle(busy, None) == busy
    assert settle(None, idle) == idle
