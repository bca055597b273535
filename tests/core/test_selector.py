"""Which devices a selector means; what excludes one is told in words."""

import fnmatch
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import PlacementSpec
from paddock.api.selector import DeviceSelector, Vendor
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.filters import allows
from paddock.core.fleet import Device, Node
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.request import Request
from paddock.core.selector import matches, mismatch, vendor_of
from support.builders import GIB, GTX_1060, INTEL, RTX_4080, RTX_6000, device, fleet

ADA = replace(RTX_4080, compute_capability="8.9", labels={"team": "a"})
NODE = Node("node1", labels={"zone": "a", "disk": "fast"})


def selector(**fields: Any) -> DeviceSelector:
    return DeviceSelector.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"vendors": ["AMD", "NVIDIA"]}, None),
        ({"vendors": ["AMD", "Intel"]}, "vendor NVIDIA is not one of AMD, Intel"),
        ({"backends": ["CUDA"]}, None),
        ({"backends": ["Vulkan"]}, "backend CUDA is not one of Vulkan"),
        ({"names": ["*rtx 4080*"]}, None),
        ({"names": ["*RTX 40?0 Laptop GPU"]}, None),
        ({"names": ["*A100*", "**4080**"]}, None),
        ({"names": ["RTX 4080"]}, "its name is not like RTX 4080"),
        ({"names": ["*4080.*"]}, "its name is not like *4080.*"),
        ({"minMemory": "11Gi", "maxMemory": "12Gi"}, None),
        ({"minMemory": "12282Mi", "maxMemory": "12282Mi"}, None),
        ({"minMemory": "12Gi"}, "it has 11.99 GiB in all, less than minMemory 12Gi"),
        ({"maxMemory": 8_000_000_000}, "it has 11.99 GiB in all, more than maxMemory 8000000000"),
        ({"minComputeCapability": "8.0", "maxComputeCapability": "8.9"}, None),
        ({"minComputeCapability": "8.9", "maxComputeCapability": "12.0"}, None),
        ({"minComputeCapability": "9.0"}, "compute capability 8.9 is below 9.0"),
        ({"minComputeCapability": "10.0"}, "compute capability 8.9 is below 10.0"),
        ({"maxComputeCapability": "8.6"}, "compute capability 8.9 is above 8.6"),
        ({"pciIds": ["0000:01:00.0", "00000000:02:00.0"]}, None),
        ({"pciIds": ["0000:01:00.0"]}, "PCI address 0000:02:00.0 is not one of 0000:01:00.0"),
        ({"nodeLabels": {"zone": "a"}}, None),
        ({"nodeLabels": {"zone": "b", "rack": "1"}}, "the node lacks rack=1, zone=b"),
        ({"gpuLabels": {"team": "a"}}, None),
        ({"gpuLabels": {"team": "b"}}, "the GPU lacks team=b"),
        ({"vendors": ["NVIDIA"], "minMemory": "1Ti"}, "it has 11.99 GiB in all, less than minMemory 1Ti"),
    ],
)
def test_a_device_is_meant_if_every_part_holds(fields: dict[str, Any], words: str | None) -> None:
    assert mismatch(selector(**fields), ADA, NODE) == words


def test_a_device_without_compute_capability_is_not_meant_by_one() -> None:
    assert mismatch(selector(maxComputeCapability="9.0"), INTEL, NODE) == "it has no compute capability"


def test_a_device_of_an_unknown_node_has_no_labels() -> None:
    assert mismatch(selector(nodeLabels={"zone": "a"}), ADA, None) == "the node lacks zone=a"


@pytest.mark.parametrize(
    ("one", "vendor"),
    [
        (GTX_1060, Vendor.NVIDIA),
        (INTEL, Vendor.INTEL),
        (device(backend="ROCm"), Vendor.AMD),
        (device(backend="Vulkan", description="AMD Radeon RX 7900 XTX (RADV NAVI31)"), Vendor.AMD),
        (device(backend="Vulkan", description="NVIDIA GeForce RTX 3090"), Vendor.NVIDIA),
        (device(backend="MUSA", description="MTT S80"), Vendor.MOORE_THREADS),
        (device(backend="Vulkan", description="Mali-G710"), None),
    ],
)
def test_the_maker_is_known_by_backend_or_name(one: Device, vendor: Vendor | None) -> None:
    assert vendor_of(one) is vendor


def test_a_selector_excludes_devices_and_says_by_which_part() -> None:
    where = fleet(GTX_1060, RTX_4080, RTX_6000)
    found = place(Request(need=GIB, selector=selector(maxMemory="8Gi")), where)
    assert isinstance(found, Placement)
    assert found.device == GTX_1060
    assert {one.device.gpu: (one.verdict, one.detail) for one in found.judged if one.device != GTX_1060} == {
        RTX_4080.gpu: (
            Verdict.NOT_SELECTED,
            "placement.selector: it has 11.99 GiB in all, more than maxMemory 8Gi",
        ),
        RTX_6000.gpu: (
            Verdict.NOT_SELECTED,
            "placement.selector: it has 95.59 GiB in all, more than maxMemory 8Gi",
        ),
    }


def test_a_selector_that_means_no_device_says_so() -> None:
    found = place(Request(need=GIB, selector=selector(vendors=["AMD"])), fleet(GTX_1060, RTX_4080))
    assert isinstance(found, Unplaceable)
    assert found.reason is Reason.NO_DEVICE
    assert found.message == (
        "placement.selector excludes all 2 known devices. "
        "node1-0000-01-00-0: vendor NVIDIA is not one of AMD; node1-0000-02-00-0: vendor NVIDIA is not one of AMD"
    )


def test_a_changed_selector_moves_what_it_excludes_and_nothing_else() -> None:
    wish = PlacementSpec.model_validate({"selector": {"maxMemory": "8Gi"}})
    assert allows(wish, GTX_1060, NODE)
    assert not allows(wish, RTX_4080, NODE)
    liking = PlacementSpec.model_validate({"preferences": [{"selector": {"maxMemory": "8Gi"}}]})
    assert allows(liking, RTX_4080, NODE)


PIECES = st.text(alphabet="ab*?", max_size=8)


@given(PIECES, st.text(alphabet="abAB", max_size=8))
def test_patterns_are_those_of_a_shell(pattern: str, text: str) -> None:
    assert matches(pattern, text) is fnmatch.fnmatchcase(text.lower(), pattern)


def test_no_pattern_takes_long() -> None:
    """By backtracking over every star this would take longer than the universe is old."""
    assert not matches("*a" * 60 + "b", "a" * 200)
