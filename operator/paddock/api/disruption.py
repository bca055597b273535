"""Moves and evictions: what may be disturbed, who was asked to leave a GPU, and for whom."""

from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import ATOMIC, like

DURATION_PATTERN = "^([0-9]{1,6}[smh])+$"
Duration = Annotated[
    str,
    Field(
        max_length=16,
        pattern=DURATION_PATTERN,
        json_schema_extra=like(DURATION_PATTERN, "a duration has units s, m and h, like 90s, 10m or 1h30m"),
    ),
]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class DisruptionSpec(Model):
    """How far others may disturb the replicas. A PlacementPolicy must allow moves and evictions in the first place."""

    allowed: bool = True
    """False: no replica is moved or evicted for another deployment."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Replicas that may be without a server at once because of evictions, those that are down already counted. 0: none
    is evicted, and one that is moved serves until its successor does."""


class DisruptionRules(Model):
    """Whether replicas may be moved or ended so that one that waits gets a GPU.

    Both deployments need the right to it: the one that waits, and the one that makes room.
    """

    moves: bool = False
    """Whether replicas may be moved to another GPU, at most two at a time, none of higher priority."""
    eviction: bool = False
    """Whether replicas may be ended for one of strictly higher priority. They go back into the queue."""
    min_interval: Duration = "10m"
    """Least time between two disruptions of one deployment, and of one GPU. Of several policies the longest counts."""
    max_per_minute: Annotated[int, Field(ge=1, le=1000)] = 4
    """Replicas of the policy's namespaces that may be moved or ended within a minute."""
    hold_room_after: Duration | None = None
    """How long a deployment waits before room is kept for it: nobody who comes after it gets memory on the GPU where
    least is missing, until it fits. Absent: never. Of several policies the longest counts."""


class Leaving(Model):
    """A pod that is asked to leave its GPU."""

    pod: str
    """namespace/name."""
    uid: str
    """Its UID: a later pod of the same name is not meant."""
    deployment: str
    """namespace/name of its ModelDeployment."""
    moves: bool | None = None
    """True: it serves until its successor on another GPU does. Absent: it is evicted."""


class Promise(Model):
    """Memory that a pod gets once others have left. Nobody else gets it; it is not reserved yet."""

    pod: str
    """namespace/name of the Pod, which does not exist yet."""
    deployment: str
    """namespace/name of its ModelDeployment."""
    uid: str
    """UID of the ModelDeployment."""
    priority: int = 0
    """Its priority when the promise was made."""
    bytes: int
    """Bytes, a multiple of 256 MiB."""
    host_bytes: int | None = None
    """Bytes of host memory beside it, on the device's node."""
    since: Moment
    """When it was made."""
    leaving: Annotated[list[Leaving], Field(json_schema_extra=ATOMIC)] = []
    """Who is asked to leave. Empty: the room is only kept, until it is enough."""
    message: str = ""
    """Why, with the cost before and after."""


class Disruption(Model):
    """The last time that a replica was asked to leave its GPU for another deployment."""

    kind: Literal["Moved", "Evicted"]
    """Moved: to another GPU. Evicted: into the queue."""
    by: str
    """namespace/name of the deployment that gets the memory."""
    gpu: str
    """Name of the GPU object that it had to leave."""
    pod_name: str
    """The pod that had to leave."""
    at: Moment
    """When."""
    message: str
    """Why, with the cost before and after."""
    waiting: bool | None = None
    """True while the replica has no new server."""


class LastDevice(Model):
    """The GPU that a replica had last."""

    replica: int
    """Number of the replica, from 0."""
    gpu: str
    """Name of the GPU object."""
