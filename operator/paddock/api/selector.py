"""Words about devices: which ones are meant, by what they are and where they are."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from paddock.api.base import Model

ATOMIC = {"x-kubernetes-list-type": "atomic"}
PCI_PATTERN = r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}[.][0-9a-fA-F]$"
CAPABILITY_PATTERN = "^[0-9]{1,2}[.][0-9]$"

QUANTITY_PATTERN = r"^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
QUANTITY_LENGTH = 64
"""Characters; Kubernetes sets no limit."""
Quantity = Annotated[
    Annotated[str, Field(max_length=QUANTITY_LENGTH, pattern=QUANTITY_PATTERN)] | int,
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": QUANTITY_LENGTH, "pattern": QUANTITY_PATTERN},
    ),
]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
Capability = Annotated[str, Field(max_length=4, pattern=CAPABILITY_PATTERN)]


def rules(*pairs: tuple[str, str], **extra: Any) -> dict[str, Any]:
    """Give schema extras that hold CEL rules, each a pair of rule and message."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs], **extra}


def like(pattern: str, message: str) -> dict[str, Any]:
    """Give schema extras that say in words what a pattern asks for."""
    return rules((f"self.matches('{pattern}')", message))


class Vendor(StrEnum):
    """Makers of GPUs."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    MOORE_THREADS = "MooreThreads"


class DeviceSelector(Model):
    """Which devices are meant: those of which everything holds that is given here."""

    vendors: Annotated[list[Vendor], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    """Makers, any of them: NVIDIA, AMD, Intel, MooreThreads."""
    backends: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=16)]], Field(max_length=8, json_schema_extra=ATOMIC)
    ] = []
    """ggml backends by which the device is used, any of them, for example CUDA, ROCm, Vulkan, SYCL."""
    names: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=16, json_schema_extra=ATOMIC)
    ] = []
    """Patterns of what the device calls itself, any of them: `*` is any text, `?` one character, for example
    `*RTX 4090*`. Upper and lower case are the same."""
    min_memory: Quantity | None = None
    """Least memory of the whole device, for example 24Gi."""
    max_memory: Quantity | None = None
    """Most memory of the whole device."""
    min_compute_capability: Capability | None = None
    """Least CUDA compute capability, for example 8.0. Devices without one are not meant."""
    max_compute_capability: Capability | None = None
    """Highest CUDA compute capability. Devices without one are not meant."""
    pci_ids: Annotated[
        list[Annotated[str, Field(max_length=16, pattern=PCI_PATTERN)]],
        Field(max_length=32, json_schema_extra=ATOMIC),
    ] = []
    """PCI addresses, any of them, on whatever node."""
    node_labels: Labels = {}
    """Labels that the device's node must have."""
    gpu_labels: Labels = {}
    """Labels that the device must have in GPU.spec.labels."""


class Preference(Model):
    """Devices that are liked, and how much. Where none of them fits, others are used."""

    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """How much: of the devices that fit those are used whose weights sum up to the most."""
    selector: DeviceSelector
    """Which devices."""
