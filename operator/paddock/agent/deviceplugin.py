"""The kubelet's interface for device plugins, version v1beta1: messages and names of its calls.

After k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paddock.agent.wire import Message, at

VERSION = "v1beta1"
REGISTER = "/v1beta1.Registration/Register"
SERVICE = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, slots=True)
class Empty(Message):
    """Nothing."""


@dataclass(frozen=True, slots=True)
class DevicePluginOptions(Message):
    """Which optional calls a plugin has."""

    pre_start_required: bool = at(1, False)
    get_preferred_allocation_available: bool = at(2, False)


@dataclass(frozen=True, slots=True)
class RegisterRequest(Message):
    """A plugin tells the kubelet of itself."""

    version: str = at(1, "")
    endpoint: str = at(2, "")
    """Name of its socket, in the kubelet's folder."""
    resource_name: str = at(3, "")
    options: DevicePluginOptions | None = at(4, None)


@dataclass(frozen=True, slots=True)
class Device(Message):
    """One of the things that can be had."""

    ID: str = at(1, "")
    health: str = at(2, "")


@dataclass(frozen=True, slots=True)
class ListAndWatchResponse(Message):
    """All of them, each time."""

    devices: tuple[Device, ...] = at(1, tuple)


@dataclass(frozen=True, slots=True)
class ContainerAllocateRequest(Message):
    """What one container is to have."""

    devices_ids: tuple[str, ...] = at(1, tuple)


@dataclass(frozen=True, slots=True)
class AllocateRequest(Message):
    """For each container of the call."""

    container_requests: tuple[ContainerAllocateRequest, ...] = at(1, tuple)


@dataclass(frozen=True, slots=True)
class DeviceSpec(Message):
    """A device node of the host."""

    container_path: str = at(1, "")
    host_path: str = at(2, "")
    permissions: str = at(3, "")


@dataclass(frozen=True, slots=True)
class CDIDevice(Message):
    """A device by its name in the Container Device Interface."""

    name: str = at(1, "")


@dataclass(frozen=True, slots=True)
class ContainerAllocateResponse(Message):
    """What the container gets."""

    envs: Mapping[str, str] = at(1, dict)
    devices: tuple[DeviceSpec, ...] = at(3, tuple)
    cdi_devices: tuple[CDIDevice, ...] = at(5, tuple)


@dataclass(frozen=True, slots=True)
class AllocateResponse(Message):
    """The same, for each container."""

    container_responses: tuple[ContainerAllocateResponse, ...] = at(1, tuple)
