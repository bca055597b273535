"""Objects of the API server, read leniently into the models: what is broken is passed over, never a traceback."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from paddock.api.context import ContextRange
from paddock.api.gpu import GPUSpec, GPUStatus
from paddock.api.modeldeployment import Condition, ModelDeploymentSpec, ModelDeploymentStatus
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.api.vocabulary import ConditionType
from paddock.core.rules import Rule, rule_of

JSON = dict[str, Any]


@dataclass(frozen=True)
class Gpu:
    """A GPU object."""

    name: str
    status: GPUStatus
    spec: GPUSpec = field(default_factory=GPUSpec)

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        found = condition(self.status.conditions, ConditionType.READY)
        return found is not None and found.status == "True"

    @property
    def why_not(self) -> str:
        """The reason why it is not ready, in one word."""
        found = condition(self.status.conditions, ConditionType.READY)
        return "no report" if found is None else "" if found.status == "True" else found.reason


@dataclass(frozen=True)
class Model:
    """A ModelDeployment object."""

    namespace: str
    name: str
    created: str
    spec: ModelDeploymentSpec | None
    status: ModelDeploymentStatus
    uid: str = ""

    def condition(self, type_: ConditionType) -> Condition | None:
        """Give a condition of its status."""
        return condition(self.status.conditions, type_)

    def holds(self, type_: ConditionType) -> bool:
        """Whether a condition is True."""
        found = self.condition(type_)
        return found is not None and found.status == "True"

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def context(self) -> str:
        """What the spec says of the context, and what was chosen where that is open."""
        if self.spec is None:
            return ""
        asked = self.spec.serving.context_length
        if isinstance(asked, int):
            return str(asked)
        words = f"{asked.least} to {asked.preferred}" if isinstance(asked, ContextRange) else asked
        return words if self.status.context is None else f"{self.status.context.length} ({words})"

    @property
    def is_open(self) -> bool:
        """Whether the spec leaves the context to be chosen."""
        return self.spec is not None and not isinstance(self.spec.serving.context_length, int)

    @property
    def wanted(self) -> int:
        """Replicas that there should be now."""
        return 0 if self.spec is None or self.spec.suspend else self.spec.replicas


def condition(conditions: Iterable[Condition], type_: ConditionType) -> Condition | None:
    """Find a condition by its type."""
    return next((one for one in conditions if one.type == type_), None)


def gpus_of(objects: Iterable[JSON]) -> list[Gpu]:
    """Read GPU objects, in the order of node and offload list; one without a status is passed over."""
    found = []
    for one in objects:
        try:
            name, status = one["metadata"]["name"], GPUStatus.model_validate(one.get("status") or {})
            found.append(Gpu(name, status, GPUSpec.model_validate(one.get("spec") or {})))
        except ValidationError:
            continue
    return sorted(found, key=_order)


def rules_of(objects: Iterable[JSON]) -> list[Rule]:
    """Read PlacementPolicies; one that cannot be read is passed over."""
    found = []
    for one in objects:
        try:
            found.append(rule_of(one["metadata"]["name"], PlacementPolicySpec.model_validate(one.get("spec") or {})))
        except ValueError:
            continue
    return found


def _order(gpu: Gpu) -> tuple[str, bool, int, str]:
    status = gpu.status
    return status.node, status.index is None, status.index or 0, gpu.name


def model_of(body: JSON) -> Model:
    """Read a ModelDeployment object."""
    meta = body["metadata"]
    try:
        spec = ModelDeploymentSpec.model_validate(body.get("spec") or {})
    except ValidationError:
        spec = None
    try:
        status = ModelDeploymentStatus.model_validate(body.get("status") or {})
    except ValidationError:
        status = ModelDeploymentStatus()
    return Model(meta["namespace"], meta["name"], meta.get("creationTimestamp", ""), spec, status, meta.get("uid", ""))


def bare(body: Mapping[str, Any]) -> JSON:
    """Give an object without the field that only the API server's own bookkeeping needs."""
    meta = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": meta}


def listed(objects: Iterable[JSON]) -> JSON:
    """Give objects as a List, in the order of their names."""
    items = [bare(one) for one in objects]
    items.sort(key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"]))
    return {"apiVersion": "v1", "kind": "List", "items": items}
