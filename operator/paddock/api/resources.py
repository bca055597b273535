"""Host resources and references that pods of a ModelDeployment have, as in a Pod."""

from typing import Annotated

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import Quantity, rules


class LocalReference(Model):
    """The name of an object of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name."""


RESOURCE_RULES = rules(
    ("self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])", "only cpu, memory and ephemeral-storage can be set"),
    ("self.all(k, quantity(string(self[k])).isGreaterThan(quantity('0')))", "resources must be positive quantities"),
)


class Resources(Model):
    """Host resources of the server's container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=8, json_schema_extra=RESOURCE_RULES)] = {}
    """What the scheduler sets aside: cpu, memory, ephemeral-storage. By default what the model needs in host memory."""
    limits: Annotated[dict[str, Quantity], Field(max_length=8, json_schema_extra=RESOURCE_RULES)] = {}
    """What the container may use at most."""
