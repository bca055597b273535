"""The offload list, the merge of duplicates and the join with the driver."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.report import ListedDevice
from paddock.core.devices import (
    DriverEntry,
    RegistryEntry,
    find_duplicates,
    list_devices,
    memory_bandwidth,
    normalise_pci,
    offload_list,
)

CPU, GPU, IGPU, ACCEL, META = range(5)
MIB = 1024 * 1024
GIB = 1024 * MIB
REGISTRIES = ("CUDA", "Vulkan", "SYCL", "RPC", "OpenCL", "BLAS")
IDS = (None, "", "0000:01:00.0", "0000:02:00.0", "0000:01:00.0-v0", "0000:01:00.0-v1")


def entry(name: str, registry: str, pci: str | None = None, *, kind: int = GPU, **more: Any) -> RegistryEntry:
    values: dict[str, Any] = {"description": "A card", "total": 8 * GIB, "free": 7 * GIB} | more
    return RegistryEntry(name, registry=registry, registry_id=hash(registry), type=kind, device_id=pci, **values)


entries_of_any_kind = st.lists(
    st.builds(
        entry,
        st.sampled_from(["D0", "D1", "D2", "D3"]),
        st.sampled_from(REGISTRIES),
        st.sampled_from(IDS),
        kind=st.sampled_from([CPU, GPU, IGPU, ACCEL, META]),
        description=st.sampled_from(["", "A card", "Another card", "A(R) Card (XY1)"]),
        total=st.sampled_from([0, 8 * GIB, 8 * GIB + 100 * MIB, 24 * GIB]),
        free=st.sampled_from([0, 7 * GIB, 32 * GIB]),
    ),
    max_size=9,
)


def offload_list_by_definition(devices: list[RegistryEntry]) -> list[int]:
    """Say the same rules once more, as filters over the whole list instead of one pass."""
    numbered = list(enumerate(devices))
    remote = [i for i, d in numbered if d.type == GPU and d.registry == "RPC"]
    candidates = [(i, d) for i, d in numbered if d.type == GPU and d.registry != "RPC"]
    discrete = [
        i
        for i, d in candidates
        if d.device_id is None or i == min(j for j, other in candidates if other.device_id == d.device_id)
    ]
    integrated = [(i, d) for i, d in numbered if d.type == IGPU]
    first = [i for i, d in integrated if d.registry_id == integrated[0][1].registry_id]
    return remote + (discrete or first)


@given(entries_of_any_kind)
def test_offload_list_is_llama_cpps(devices: list[RegistryEntry]) -> None:
    assert offload_list(devices) == offload_list_by_definition(devices)


def test_offload_list_of_a_mixed_node() -> None:
    devices = [
        entry("BLAS", "BLAS", kind=ACCEL),
        entry("CUDA0", "CUDA", "0000:01:00.0"),
        entry("RPC0", "RPC"),
        entry("Vulkan0", "Vulkan", "0000:01:00.0"),
        entry("Vulkan1", "Vulkan", "0000:00:02.0", kind=IGPU),
        entry("Vulkan2", "Vulkan", "0000:02:00.0"),
        entry("CPU", "CPU", kind=CPU),
    ]
    assert offload_list(devices) == [2, 1, 5]


def test_remote_devices_do_not_hide_integrated_ones() -> None:
    devices = [entry("Vulkan0", "Vulkan", kind=IGPU), entry("SYCL0", "SYCL", kind=IGPU), entry("RPC0", "RPC")]
    assert offload_list(devices) == [2, 0]


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("0000:c1:00.0", "0000:c1:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:01:00.0-v1", "0000:01:00.0-v1"),
        ("01:00.0", None),
        ("0000:01:00.9", None),
        ("", None),
        (None, None),
        ("GPU-1f6f8f9e", None),
    ],
)
def test_pci_ids_are_spelled_one_way(written: str | None, normal: str | None) -> None:
    assert normalise_pci(written) == normal


def test_bandwidth_of_known_cards() -> None:
    assert memory_bandwidth(192, 4004) == 192_192_000_000  # GTX 1060: 192 GB/s
    assert memory_bandwidth(256, 11201) == 716_864_000_000  # RTX 4080: 717 GB/s
    assert memory_bandwidth(None, 11201) is None
    assert memory_bandwidth(256, 0) is None


class TestDuplicates:
    def test_same_pci_id_of_two_backends_is_one_card_and_cuda_survives(self) -> None:
        devices = [entry("Vulkan0", "Vulkan", "0000:01:00.0"), entry("CUDA0", "CUDA", "0000:01:00.0")]
        assert find_duplicates(devices) == {0: 1}

    @pytest.mark.parametrize(
        ("better", "worse"),
        [
            ("CUDA", "ROCm"),
            ("ROCm", "MUSA"),
            ("MUSA", "SYCL"),
            ("SYCL", "CANN"),
            ("CANN", "OpenCL"),
            ("OpenCL", "Vulkan"),
            ("Vulkan", "SomethingNew"),
        ],
    )
    def test_order_of_survivors(self, better: str, worse: str) -> None:
        devices = [entry("W0", worse, "0000:01:00.0"), entry("B0", better, "0000:01:00.0")]
        assert find_duplicates(devices) == {0: 1}
        assert find_duplicates(devices[::-1]) == {1: 0}

    def test_slices_of_one_backend_are_kept_apart(self) -> None:
        devices = [entry("CUDA0", "CUDA", "0000:01:00.0"), entry("CUDA1", "CUDA", "0000:01:00.0")]
        assert find_duplicates(devices) == {}

    def test_the_whole_card_seen_by_vulkan_is_a_duplicate_of_its_first_virtual_device(self) -> None:
        devices = [
            entry("CUDA0", "CUDA", "0000:01:00.0-v0"),
            entry("CUDA1", "CUDA", "0000:01:00.0-v1"),
            entry("Vulkan0", "Vulkan", "0000:01:00.0"),
        ]
        assert find_duplicates(devices) == {2: 0}

    def test_without_an_id_on_one_side_name_and_size_decide(self) -> None:
        arc: dict[str, Any] = {"description": "Intel(R) Arc(TM) A770 Graphics", "total": 16 * GIB}
        seen: dict[str, Any] = {"description": "Intel(R) Arc(tm) A770 Graphics (DG2)", "total": int(15.5 * GIB)}
        devices = [entry("SYCL0", "SYCL", **arc), entry("Vulkan0", "Vulkan", "0000:03:00.0", **seen)]
        assert find_duplicates(devices) == {1: 0}
        smaller = entry("Vulkan0", "Vulkan", "0000:03:00.0", **seen | {"total": 12 * GIB})
        assert find_duplicates([devices[0], smaller]) == {}
        unknown = entry("Vulkan0", "Vulkan", "0000:03:00.0", **seen | {"total": 0})
        assert find_duplicates([devices[0], unknown]) == {}

    def test_two_equal_cards_are_paired_one_to_one(self) -> None:
        devices = [
            entry("CUDA0", "CUDA", "0000:01:00.0"),
            entry("CUDA1", "CUDA", "0000:02:00.0"),
            entry("OpenCL0", "OpenCL"),
            entry("OpenCL1", "OpenCL"),
            entry("OpenCL2", "OpenCL"),
        ]
        assert find_duplicates(devices) == {2: 0, 3: 1}

    def test_a_remote_device_is_nobodys_duplicate(self) -> None:
        assert find_duplicates([entry("CUDA0", "CUDA", "0000:01:00.0"), entry("RPC0", "RPC")]) == {}

    def test_look_alikes_without_ids_are_ambiguous(self) -> None:
        devices = list_devices([entry("SYCL0", "SYCL"), entry("SYCL1", "SYCL"), entry("SYCL2", "SYCL", total=GIB)])
        assert [device.ambiguous for device in devices] == [True, True, False]

    def test_unknown_memory_does_not_tell_cards_apart(self) -> None:
        devices = list_devices([entry("SYCL0", "SYCL"), entry("SYCL1", "SYCL", total=0)])
        assert [device.ambiguous for device in devices] == [True, True]

    def test_one_name_for_two_devices_is_ambiguous(self) -> None:
        one = entry("GPUOpenCL", "OpenCL", description="This")
        other = entry("GPUOpenCL", "OpenCL", description="That", total=GIB)
        assert all(device.ambiguous for device in list_devices([one, other]))

    def test_equal_cards_with_ids_are_not_ambiguous(self) -> None:
        devices = list_devices([entry("CUDA0", "CUDA", "0000:01:00.0"), entry("CUDA1", "CUDA", "0000:02:00.0")])
        assert not any(device.ambiguous for device in devices)


CARD = DriverEntry(
    pci_id="00000000:01:00.0",
    uuid="GPU-1",
    total=10 * GIB,
    free=9 * GIB + 200 * MIB,
    compute_capability="8.9",
    bus_width=256,
    memory_clock=11201,
)


class TestList:
    def test_driver_facts_are_joined_by_pci_id(self) -> None:
        first, second = list_devices(
            [entry("CUDA0", "CUDA", "0000:02:00.0"), entry("CUDA1", "CUDA", "0000:01:00.0")], [CARD]
        )
        assert (first.uuid, first.memory_total, first.memory_free) == (None, 8 * GIB, 7 * GIB)
        assert second.uuid == "GPU-1"
        assert second.memory_total == 10 * GIB
        assert second.memory_free == 9 * GIB  # in steps of 256 MiB
        assert second.compute_capability == "8.9"
        assert second.memory_bandwidth == 716_864_000_000

    def test_a_duplicate_carries_the_cards_id_too(self) -> None:
        devices = list_devices(
            [entry("CUDA0", "CUDA", "0000:01:00.0"), entry("Vulkan0", "Vulkan", "0000:01:00.0")], [CARD]
        )
        assert [device.uuid for device in devices] == ["GPU-1", "GPU-1"]
        assert [device.duplicate_of for device in devices] == [None, "CUDA0"]
        assert [device.index for device in devices] == [0, None]

    @pytest.mark.parametrize(
        ("ids", "card"),
        [
            (["0000:01:00.0-v0", "0000:01:00.0-v1"], CARD),
            (["0000:01:00.0", "0000:01:00.0"], CARD),
            (
                ["0000:01:00.0"],
                DriverEntry(pci_id="0000:01:00.0", uuid="GPU-1", total=10 * GIB, free=GIB, partitioned=True),
            ),
        ],
    )
    def test_a_part_of_a_card_is_not_given_the_whole_cards_id_or_memory(
        self, ids: list[str], card: DriverEntry
    ) -> None:
        for device in list_devices([entry(f"CUDA{n}", "CUDA", pci) for n, pci in enumerate(ids)], [card]):
            assert (device.uuid, device.memory_total, device.memory_free) == (None, 8 * GIB, 7 * GIB)

    def test_memory_that_the_driver_does_not_say_comes_from_ggml(self) -> None:
        card = DriverEntry(pci_id="0000:01:00.0", uuid="GPU-1")
        (device,) = list_devices([entry("CUDA0", "CUDA", "0000:01:00.0")], [card])
        assert (device.uuid, device.memory_total, device.memory_free) == ("GPU-1", 8 * GIB, 7 * GIB)

    @pytest.mark.parametrize(
        ("total", "free", "told"), [(0, 0, (None, None)), (0, GIB, (None, None)), (GIB, 2 * GIB, (GIB, None))]
    )
    def test_impossible_memory_is_unknown(self, total: int, free: int, told: tuple[int | None, int | None]) -> None:
        (device,) = list_devices([entry("CUDA0", "CUDA", total=total, free=free)])
        assert (device.memory_total, device.memory_free) == told

    def test_free_memory_that_the_driver_lost_is_unknown(self) -> None:
        card = DriverEntry(pci_id="0000:01:00.0", uuid="GPU-1", total=10 * GIB, free=None)
        (device,) = list_devices([entry("CUDA0", "CUDA", "0000:01:00.0")], [card])
        assert (device.memory_total, device.memory_free) == (10 * GIB, None)

    def test_raw_index_counts_within_the_backend_and_the_cpu_is_left_out(self) -> None:
        devices = list_devices(
            [
                entry("BLAS", "BLAS", kind=ACCEL),
                entry("CUDA0", "CUDA", "0000:01:00.0"),
                entry("Vulkan0", "Vulkan", "0000:01:00.0"),
                entry("Vulkan1", "Vulkan", "0000:02:00.0"),
                entry("CPU", "CPU", kind=CPU),
            ]
        )
        assert [(d.name, d.raw_index, d.index) for d in devices] == [
            ("BLAS", 0, None),
            ("CUDA0", 0, 0),
            ("Vulkan0", 0, None),
            ("Vulkan1", 1, 1),
        ]

    def test_free_memory_does_not_flap_around_a_step(self) -> None:
        def look(free: int, before: list[ListedDevice]) -> list[ListedDevice]:
            return list_devices([entry("CUDA0", "CUDA", "0000:01:00.0", free=free)], (), before)

        first = look(4 * GIB - MIB, [])
        assert first[0].memory_free == 4 * GIB - 256 * MIB
        assert look(4 * GIB + MIB, first) == first
        assert look(4 * GIB + 40 * MIB, first)[0].memory_free == 4 * GIB
        fallen = look(2 * GIB + MIB, first)
        assert fallen[0].memory_free == 2 * GIB  # a fall counts at once
        assert look(3 * GIB, fallen)[0].memory_free == 3 * GIB

    @given(entries_of_any_kind, st.sampled_from([(), (CARD,)]))
    def test_what_holds_for_every_registry(self, entries: list[RegistryEntry], cards: tuple[DriverEntry, ...]) -> None:
        devices = list_devices(entries, cards)
        indices = [device.index for device in devices if device.index is not None]
        assert sorted(indices) == list(range(len(offload_list(entries))))
        assert [d.name for d in devices] == [e.name for e in entries if e.type in (GPU, IGPU, ACCEL)]
        assert list_devices(entries, cards, devices) == devices
        for position, twin in find_duplicates(entries).items():
            assert entries[position].registry != entries[twin].registry
            assert twin not in find_duplicates(entries)
        for device in devices:
            assert device.memory_free is None or 0 <= device.memory_free <= (device.memory_total or 0)
            assert not (device.ambiguous and device.duplicate_of)
