"""The CustomResourceDefinitions, generated from the models: what crds/ holds and `paddock crds` prints."""

import json
from dataclasses import dataclass
from typing import Any

import yaml  # in the extra `cli`; neither the operator nor the agent imports this module
from pydantic import BaseModel

from paddock.api.gpu import GPUSpec, GPUStatus
from paddock.api.modeldeployment import MAX_NAME, ModelDeploymentSpec, ModelDeploymentStatus
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.api.schema import Schema, structural
from paddock.api.selector import rules
from paddock.api.vocabulary import GROUP, VERSION, ConditionType

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Names of ModelDeployments: the Service has the same name, and a Service's name starts with a letter."""

NAME_RULES = rules(
    (
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        "metadata.name must start with a letter, hold only a-z, 0-9 and -, and not end with -, like its Service's",
    ),
    (
        f"self.metadata.name.size() <= {MAX_NAME}",
        f"metadata.name must have at most {MAX_NAME} characters: pods add a revision and a number to it",
    ),
)


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; wide ones are shown by `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    format: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the entry of additionalPrinterColumns."""
        out: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.format:
            out["format"] = self.format
        return out | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True)
class Kind:
    """One custom resource."""

    kind: str
    plural: str
    scope: str
    description: str
    status: type[BaseModel] | None
    columns: tuple[Column, ...]
    spec: type[BaseModel]
    spec_required: bool = True
    short_names: tuple[str, ...] = ()
    rules: tuple[tuple[str, Any], ...] = ()
    scalable: bool = False

    @property
    def file_name(self) -> str:
        """Name of its file in crds/."""
        return f"{GROUP}_{self.plural}.yaml"

    @property
    def schema(self) -> Schema:
        """Structural schema of the whole object."""
        properties: Schema = {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
        }
        properties["spec"] = structural(self.spec, defaults=True)
        if self.status is not None:
            properties["status"] = structural(self.status, defaults=False)
        return {
            "description": self.description,
            "type": "object",
            **dict(self.rules),
            **({"required": ["spec"]} if self.spec_required else {}),
            "properties": properties,
        }

    def definition(self) -> dict[str, Any]:
        """Give the CustomResourceDefinition."""
        names: dict[str, Any] = {
            "kind": self.kind,
            "listKind": f"{self.kind}List",
            "plural": self.plural,
            "singular": self.kind.lower(),
            "categories": ["paddock"],
        }
        if self.short_names:
            names["shortNames"] = list(self.short_names)
        subresources: dict[str, Any] = {"status": {}} if self.status is not None else {}
        if self.scalable:
            subresources["scale"] = {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            }
        version = {
            "name": VERSION,
            "served": True,
            "storage": True,
            **({"subresources": subresources} if subresources else {}),
            "additionalPrinterColumns": [column.to_dict() for column in self.columns],
            "schema": {"openAPIV3Schema": self.schema},
        }
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {"group": GROUP, "scope": self.scope, "names": names, "versions": [version]},
        }


def _condition(kind: ConditionType, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


MODEL_DEPLOYMENT = Kind(
    kind="ModelDeployment",
    plural="modeldeployments",
    scope="Namespaced",
    short_names=("mdep",),
    description="One GGUF model, served by llama-server, each replica whole on one GPU: the one that was chosen for it "
    "or named by you, and proven from the server's own log before it gets traffic.",
    spec=ModelDeploymentSpec,
    status=ModelDeploymentStatus,
    rules=tuple(NAME_RULES.items()),
    scalable=True,
    columns=(
        Column("Ready", ".status.readyReplicas", "integer"),
        Column("Replicas", ".spec.replicas", "integer"),
        Column("GPU", ".status.placements[0].devices[0].name"),
        Column("Node", ".status.placements[0].node"),
        Column("Placed", _condition(ConditionType.PLACED)),
        Column("Verified", _condition(ConditionType.VERIFIED)),
        Column("Available", _condition(ConditionType.AVAILABLE)),
        Column("Fetched", ".status.model.progress.text"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Policy", ".spec.placement.policy", wide=True),
        Column("Binding", ".status.placements[0].binding.binder", wide=True),
        Column("Priority", ".spec.priority", "integer", wide=True),
        Column("Context", ".status.placements[0].contextLength", "integer", wide=True),
        Column("Source", ".spec.model.source", wide=True),
        Column("Reason", _condition(ConditionType.AVAILABLE, "reason"), wide=True),
    ),
)

GPU = Kind(
    kind="GPU",
    plural="gpus",
    scope="Cluster",
    description="One physical device of the fleet, as the agent of its node reports it, and what is reserved on it. "
    "The operator makes it and writes its status; spec is for the owner of the fleet.",
    spec=GPUSpec,
    spec_required=False,
    status=GPUStatus,
    columns=(
        Column("Node", ".status.node"),
        Column("Index", ".status.index", "integer"),
        Column("Device", ".status.name"),
        Column("Description", ".status.description"),
        Column("Type", ".status.type"),
        Column("Memory", ".status.memory.total"),
        Column("Free", ".status.memory.free"),
        Column("Reserved", ".status.memory.reserved"),
        Column("Foreign", ".status.memory.foreign"),
        Column("Ready", _condition(ConditionType.READY)),
        Column("Used by", ".status.usedBy"),
        Column("Budget", ".spec.budget", wide=True),
        Column("UUID", ".status.uuid", wide=True),
        Column("PCI", ".status.pciId", wide=True),
        Column("Backends", ".status.backends", wide=True),
        Column("Driver", ".status.driver", wide=True),
    ),
)

PLACEMENT_POLICY = Kind(
    kind="PlacementPolicy",
    plural="placementpolicies",
    scope="Cluster",
    description="What the owner of the fleet lets the ModelDeployments of some namespaces have: which GPUs, how much "
    "of them, which priority, and how a GPU is picked by default. A change moves and ends nothing that runs.",
    spec=PlacementPolicySpec,
    status=None,
    columns=(
        Column("Namespaces", ".spec.namespaces"),
        Column("Policy", ".spec.defaultPolicy"),
        Column("Memory", ".spec.maxGpuMemory"),
        Column("Priority", ".spec.maxPriority", "integer"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ),
)

KINDS = (MODEL_DEPLOYMENT, GPU, PLACEMENT_POLICY)


def crds() -> dict[str, str]:
    """Give the definitions as YAML, by file name."""
    return {kind.file_name: _to_yaml(kind.definition()) for kind in KINDS}


def _to_yaml(definition: dict[str, Any]) -> str:
    # Rules and list types are shared between fields; a copy without sharing is written without YAML anchors.
    unshared = json.loads(json.dumps(definition))
    return yaml.safe_dump(unshared, sort_keys=False, width=110, allow_unicode=True)
