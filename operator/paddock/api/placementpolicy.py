"""PlacementPolicy: what the owner of the fleet lets the ModelDeployments of some namespaces have."""

from typing import Annotated

from pydantic import Field

from paddock.api.base import Model
from paddock.api.disruption import DisruptionRules
from paddock.api.gpu import SIZE_PATTERN
from paddock.api.modeldeployment import Policy
from paddock.api.selector import ATOMIC, DeviceSelector, like

NAMESPACE_PATTERN = "^[-a-z0-9*?]+$"
Size = Annotated[
    str,
    Field(
        max_length=20,
        pattern=SIZE_PATTERN,
        json_schema_extra=like(SIZE_PATTERN, "memory is a quantity like 20Gi"),
    ),
]


class DeviceBudget(Model):
    """How much of each of some devices the namespaces may have together."""

    selector: DeviceSelector = DeviceSelector()
    """Which devices; by default all."""
    memory: Size
    """Memory of each of them, as a quantity."""


class PlacementPolicySpec(Model):
    """What holds for some namespaces. Where several policies mean one, all that any of them asks holds."""

    namespaces: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63, pattern=NAMESPACE_PATTERN)]],
        Field(max_length=64, json_schema_extra=ATOMIC),
    ] = []
    """Names of namespaces, or patterns of them: `*` is any text, `?` one character. Empty means every namespace."""
    default_policy: Policy | None = None
    """What a ModelDeployment gets that leaves spec.placement.policy at Auto and asks for no speed. Of several policies
    the first by name counts."""
    gpus: DeviceSelector | None = None
    """Devices that may be used; others are not for these namespaces."""
    max_gpu_memory: Size | None = None
    """Memory of GPUs that the namespaces may have reserved together, over all devices."""
    budgets: Annotated[list[DeviceBudget], Field(max_length=16, json_schema_extra=ATOMIC)] = []
    """Memory that the namespaces may have on single devices."""
    max_priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """Highest spec.priority that a ModelDeployment may have; one that asks for more gets no further replica."""
    disruption: DisruptionRules | None = None
    """Whether replicas may be moved or ended so that others get a GPU. Absent: this policy neither allows nor forbids
    it. Where no policy of a namespace allows it, and where one forbids it, it does not happen."""
