"""What a ModelDeployment that waits is told."""

from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import ATOMIC


class MemoryHolder(Model):
    """Who has memory."""

    deployment: str | None = None
    """namespace/name of a ModelDeployment; absent for what Paddock did not place."""
    bytes: int
    """How much."""


class Shortage(Model):
    """Where a replica without a device came nearest to one, and what is missing there."""

    gpu: str
    """Name of the GPU object."""
    node: str
    """Its node."""
    memory: Literal["Device", "Host", "Quota"]
    """What does not suffice: the device's memory, the host's on its node, or what a PlacementPolicy allows."""
    required_bytes: int
    """What the replica needs of it."""
    available_bytes: int
    """What is left of it."""
    holders: Annotated[list[MemoryHolder], Field(json_schema_extra=ATOMIC)] = []
    """Who has the rest, at most ten."""


class Queue(Model):
    """A place in the queue of all deployments that wait for a device: by priority, then age."""

    position: int
    """From 1. Beyond 10 rounded up to one digit."""
