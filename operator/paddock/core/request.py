"""What a replica asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paddock.api.modeldeployment import (
    AllowIntegrated,
    DeviceRef,
    ModelDeploymentSpec,
    Policy,
    ReplicaSpread,
    Toleration,
)
from paddock.api.selector import DeviceSelector, Preference
from paddock.api.vocabulary import GRANULE
from paddock.core.binding import NVIDIA
from paddock.core.fleet import Device
from paddock.core.overhead import MOST_LOWERED
from paddock.core.quantity import round_up
from paddock.core.rules import Rule, default_policy


@dataclass(frozen=True, slots=True)
class Request:
    """What one replica asks for. Sizes in bytes."""

    need: int
    """On a device of a backend that is not among `needs`, a multiple of 256 MiB."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """Bytes on a device, by ggml's name of its backend."""
    host_need: int = 0
    """In host memory, beside a device."""
    policy: Policy = Policy.AUTO
    devices: tuple[DeviceRef, ...] = ()
    selector: DeviceSelector | None = None
    """Devices that may be used; None for all."""
    preferences: tuple[Preference, ...] = ()
    min_tokens_per_second: int | None = None
    token_bytes: int = 0
    """What a device reads for one token; 0 when that is not known."""
    replica_spread: ReplicaSpread = ReplicaSpread.DEVICE
    priority: int = 0
    """What has less may be evicted for it, where that is allowed."""
    rules: tuple[Rule, ...] = ()
    """Of the PlacementPolicies that hold for its namespace."""
    seed: str = ""
    """Tells replicas apart where equal devices are taken in turn."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    allow_cpu: bool = False
    allow_integrated: AllowIntegrated = AllowIntegrated.AUTO
    on_cpu: bool = False
    """gpuLayers is 0."""
    siblings: frozenset[str] = frozenset()
    """namespace/name of the deployment's other pods, whose devices are avoided where others fit."""
    file_nodes: frozenset[str] | None = None
    """Nodes that have the model file; None when every node can reach it."""
    volume_nodes: frozenset[str] | None = None
    """Nodes that can mount the claim; None when every node can."""
    near_nodes: frozenset[str] = frozenset()
    """Nodes that need not fetch the file: preferred among devices that are alike."""
    backends: frozenset[str] | None = None
    """Backends with a server image; None when spec.server.image decides."""
    last: str | None = None
    """Name of the GPU object that it goes back to where that fits."""
    runtime_classes: Mapping[str, bool] = field(default_factory=dict)
    """By backend: whether the RuntimeClass that it needs exists. Backends that need none are absent."""
    runtime_class: str | None = NVIDIA
    """The RuntimeClass that gives NVIDIA cards; None where none is configured."""

    @property
    def classes(self) -> frozenset[str]:
        """That RuntimeClass, if it exists."""
        if self.runtime_class is None or not self.runtime_classes.get("CUDA", True):
            return frozenset()
        return frozenset({self.runtime_class})

    def need_on(self, device: Device) -> int:
        """Give the bytes to reserve on a device, a multiple of 256 MiB, by its backend and what was learned there."""
        known = self.needs.get(device.backend)
        if known is None and not device.more:
            return self.need
        return max(round_up((self.need if known is None else known) + device.more), GRANULE)

    def host_need_on(self, device: Device) -> int:
        """Give the bytes of host memory that go with a device: where it is in host memory, what it has, too."""
        return self.host_need + (self.need_on(device) if device.in_host_memory else 0)

    @property
    def least_need(self) -> int:
        """What it needs at least wherever that is, so that nobody need look further where there is less."""
        return min((self.need, *map(round_up, self.needs.values()))) - MOST_LOWERED


def request_of(
    spec: ModelDeploymentSpec, need: int, host_need: int, token_bytes: int, rules: tuple[Rule, ...] = ()
) -> Request:
    """Give what a spec asks for one replica under these rules; all else is left at its default."""
    wish = spec.placement
    policy = wish.policy
    if policy is Policy.AUTO and wish.min_tokens_per_second is None:
        policy = default_policy(rules) or policy
    return Request(
        need=need,
        host_need=host_need,
        policy=policy,
        priority=spec.priority,
        rules=rules,
        devices=tuple(wish.devices),
        selector=wish.selector,
        preferences=tuple(wish.preferences),
        min_tokens_per_second=wish.min_tokens_per_second,
        token_bytes=token_bytes,
        replica_spread=wish.replica_spread,
        node_selector=wish.node_selector,
        tolerations=tuple(spec.server.tolerations),
        allow_cpu=wish.allow_cpu,
        allow_integrated=wish.allow_integrated,
        on_cpu=spec.serving.gpu_layers == 0,
    )
