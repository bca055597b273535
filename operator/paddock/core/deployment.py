"""A ModelDeployment as the operator reads it: parsed once at the border, frozen afterwards."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from paddock.api.base import Model, in_words
from paddock.api.modeldeployment import ModelDeploymentSpec
from paddock.api.vocabulary import API_VERSION, Annotation, Label

KIND = "ModelDeployment"


@dataclass(frozen=True)
class Deployment:
    """The object, as far as it is needed."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: ModelDeploymentSpec | None
    """None when it cannot be read; `problem` says why."""
    problem: str = ""
    deleting: bool = False
    restarted_at: str = ""
    created: str = ""
    """RFC 3339."""
    status: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @cached_property
    def server_hash(self) -> str:
        """See `revision`."""
        spec = self.spec
        if spec is None:
            return ""
        parts = {
            "model": {key: value for key, value in _said(spec.model).items() if key != "prefetch"},
            "serving": _said(spec.serving),
            "server": _said(spec.server),
            "restarted": self.restarted_at,
        }
        return _digest(parts)

    @cached_property
    def devices_hash(self) -> str:
        """See `placement_hash`."""
        if self.spec is None:
            return ""
        return _digest({key: value for key, value in _said(self.spec.placement).items() if key not in _WISHES})

    @property
    def owner_reference(self) -> dict[str, Any]:
        """What makes Kubernetes remove an object together with this one."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    @property
    def selector(self) -> dict[str, str]:
        """Labels that its server pods have."""
        return {Label.DEPLOYMENT: self.name, Label.COMPONENT: Label.SERVER}


def deployment_of(body: Mapping[str, Any]) -> Deployment:
    """Read an object of the API server."""
    meta = body["metadata"]
    spec: ModelDeploymentSpec | None = None
    problem = ""
    try:
        spec = ModelDeploymentSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        where = ".".join(str(part) for part in found[0]["loc"])
        problem = f"spec{'.' if where else ''}{where}: {in_words(found[0]['msg'])}"
        more = len(found) - 1
        problem += f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return Deployment(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        spec=spec,
        problem=problem,
        deleting="deletionTimestamp" in meta,
        restarted_at=(meta.get("annotations") or {}).get(Annotation.RESTARTED_AT, ""),
        created=meta.get("creationTimestamp") or "",
        status=body.get("status") or {},
    )


def _said(value: Model) -> dict[str, Any]:
    """Give what differs from the defaults, by the API's names: those of the code may change."""
    return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def revision(deployment: Deployment) -> str:
    """Give the hash of what the user says about a server: a change of it rolls the replicas.

    Only values that differ from the defaults count, so that a new operator with new fields changes no hash. Not in it:
    replicas, suspend, priority, placement (looked at on its own), what is fetched ahead of need, and the operator's own
    choices.
    """
    return deployment.server_hash


_WISHES = frozenset({"policy", "minTokensPerSecond", "preferences", "replicaSpread", "sticky"})
"""What says only which of the allowed devices is best: a change of it moves nothing."""


def placement_hash(deployment: Deployment) -> str:
    """Give the hash of what the user says about devices and nodes that may be used."""
    return deployment.devices_hash
