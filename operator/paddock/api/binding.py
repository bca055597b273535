"""How a server gets its device: the ways there are, and the one that was taken."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import ATOMIC


class Binder(StrEnum):
    """A way by which a pod is given one device."""

    RUNTIME_CLASS = "RuntimeClass"
    """A RuntimeClass whose runtime gives the container the device that an environment variable names."""
    DEVICE_PLUGIN = "DevicePlugin"
    """The node agent's device plugin: the pod asks for memory of one device as an extended resource."""
    DRA = "Dra"
    """A ResourceClaim that names the device to the driver of its vendor."""
    VENDOR_PLUGIN = "VendorPlugin"
    """The device plugin of its vendor."""
    NONE = "None"
    """Nothing but environment variables; all that a replica on the CPU needs."""


class DevicePlugin(Model):
    """How the node agent's device plugin gives a device out."""

    resource: Annotated[str, Field(max_length=120)]
    """Extended resource of which a pod asks for one per 256 MiB."""
    granules: int
    """How many there are."""
    hands: Literal["Cdi", "Devices", "Environment"]
    """What a container gets: the device by its name in the Container Device Interface, its device nodes, or no more
    than the environment variable for a RuntimeClass."""
    groups: Annotated[list[int], Field(json_schema_extra=ATOMIC)] = []
    """Groups of the host that may open the device nodes."""
    registered: bool = False
    """Whether the kubelet listens to the plugin."""


class PlacedBinding(Model):
    """How a replica got its device."""

    binder: Binder
    """The way."""
    reason: str
    """Why this way, in a sentence."""
    exact_device: bool = True
    """False: not this device was asked for but any of its kind, and which one it is was learned afterwards."""
