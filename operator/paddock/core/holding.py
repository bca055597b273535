"""Holder pods: each asks the plugin of a vendor for one card, so that several servers may share it by its UUID.

A holder only waits. As long as it has its card, the plugin gives that card to nobody else, and the vendor's count says
so; who has how much of it is Paddock's to count.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paddock.api.vocabulary import Annotation, Label
from paddock.core.pod import RESTRICTED_CONTAINER, restricted

COMPONENT = "card-holder"
"""Value of the label of that name on holders."""
_COPIED = ("tolerations", "imagePullSecrets", "priorityClassName")
"""What a holder has of the agent's pod on its node."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder's pod, as the operator reads it."""

    name: str
    uid: str
    node: str
    resource: str
    deleting: bool = False
    ended: bool = False
    """Whether the kubelet will never run it (again)."""
    problem: str = ""
    """What keeps it from getting a card, as far as Kubernetes says."""


def holder_name(node: str, number: int) -> str:
    """Give the deterministic name of a node's holder: who makes it a second time meets the first one's pod."""
    return f"{_prefix(node)}{number}"


def is_holder_of(node: str, name: str) -> bool:
    """Tell whether a pod's name is that of a node's holder."""
    return name.startswith(_prefix(node))


def _prefix(node: str) -> str:
    return f"paddock-holder-{hashlib.sha256(node.encode()).hexdigest()[:10]}-"


def holder_pod(name: str, node: str, resource: str, agent: Mapping[str, Any], user: int) -> dict[str, Any]:
    """Build a holder from the pod of the agent that runs on its node: the same image, and gone with the same pool."""
    meta, spec = agent["metadata"], agent["spec"]
    main = next(one for one in spec["containers"] if one["name"] == "agent")
    owners = [
        {key: one[key] for key in ("apiVersion", "kind", "name", "uid")} for one in meta.get("ownerReferences") or ()
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {Label.COMPONENT: COMPONENT, Label.NAME: COMPONENT, Label.MANAGED_BY: "paddock"},
            "annotations": {Annotation.NODE: node},
            "ownerReferences": owners,
        },
        "spec": {
            **restricted(user),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 1,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
            },
            "containers": [
                {
                    "name": "holder",
                    "image": main["image"],
                    # The agent runs there: its image is on the node already.
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "paddock.agent.hold"],
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "16Mi", resource: "1"},
                        "limits": {"memory": "64Mi", resource: "1"},
                    },
                    "securityContext": dict(RESTRICTED_CONTAINER),
                }
            ],
            **{key: spec[key] for key in _COPIED if spec.get(key)},
        },
    }


def holder_of(pod: Mapping[str, Any]) -> Holder:
    """Read a holder's pod."""
    meta, status, spec = pod["metadata"], pod.get("status") or {}, pod.get("spec") or {}
    limits = ((spec.get("containers") or [{}])[0].get("resources") or {}).get("limits") or {}
    return Holder(
        name=meta["name"],
        uid=meta.get("uid", ""),
        node=(meta.get("annotations") or {}).get(Annotation.NODE, ""),
        resource=next((name for name in sorted(limits) if "/" in name), ""),
        deleting="deletionTimestamp" in meta,
        ended=status.get("phase") in ("Failed", "Succeeded"),
        problem=_problem(status),
    )


def _problem(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", "it is not scheduled"))
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason', '')}: {waiting['message']}"
    return str(status.get("message", "")) if status.get("phase") == "Failed" else ""
