"""Facts of an installation and findings about it, as `paddock doctor` exchanges them.

Whoever asks may not see everything: None stands for what could not be read, and is told as such, never as sound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from paddock.api.gpu import GPUStatus


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    check: str
    state: State
    message: str
    remedy: str = ""
    node: str = ""
    """Which node it is about; empty for the cluster."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A CustomResourceDefinition, beside the one that this program knows."""

    name: str
    there: bool = True
    established: bool = True
    older: tuple[str, ...] = ()
    """Fields that this program knows and the cluster does not."""
    newer: tuple[str, ...] = ()
    """The other way round."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or DaemonSet of Paddock's."""

    namespace: str
    name: str
    version: str
    wanted: int
    ready: int
    runtime_class: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of Paddock's."""

    namespace: str
    name: str
    component: str
    node: str = ""
    ready: bool = False
    ended: bool = False
    """It ran to its end, or is being removed."""
    image: str = ""
    waiting: str = ""
    """Why a container of it waits, in Kubernetes' word."""
    message: str = ""
    """What Kubernetes says of that, or last said in a warning."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads."""

    holder: str
    age: float | None
    """Seconds since it was renewed, by the API server's clock."""
    seconds: float = 15.0
    """How long it holds."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Kubernetes knows it."""

    name: str
    ready: bool = True
    resources: Mapping[str, int] = field(default_factory=dict)
    """What is allocatable of extended resources."""
    heartbeat: float | None = None
    """Seconds since its kubelet renewed its Lease, by the API server's clock; negative: in the future."""
    has_gpu: bool = False
    """A label says so."""
    dedicated: bool = False
    """Its owner says that its GPUs are Paddock's alone."""
    kept_off: bool = False
    """A label keeps NVIDIA's device plugin off it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU object."""

    name: str
    status: GPUStatus
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read."""

    client: str
    """This program's version."""
    kinds: Sequence[Kind] | None = None
    operators: Sequence[Workload] | None = None
    agents: Sequence[Workload] | None = None
    pods: Sequence[Pod] | None = None
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Last warning of Kubernetes about an object of the operator's namespace, by its name."""
    lease: Lease | None = None
    lacking_rights: Sequence[str] | None = None
    """Rights that the operator needs and does not have, in words."""
    runtime_classes: frozenset[str] | None = None
    pod_security: str = ""
    """What the operator's namespace enforces."""
    nodes: Sequence[Node] | None = None
    gpus: Sequence[Gpu] | None = None
    skew: float | None = None
    """Seconds by which this machine's clock is ahead of the API server's."""
