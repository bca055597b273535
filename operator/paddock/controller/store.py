"""What the operator has seen: small indexed stores of parsed objects, fed by lists and watches."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from paddock.api.gpu import GPUSpec, GPUStatus
from paddock.api.vocabulary import GROUP, Annotation
from paddock.core.counting import is_counted
from paddock.core.deployment import Deployment, deployment_of
from paddock.core.dra import SliceDevice
from paddock.core.fleet import Node, Taint
from paddock.core.quantity import parse_quantity
from paddock.core.queue import Queued, ahead_of, order_of, position
from paddock.core.replica import Replica, replica_of, trusted
from paddock.core.request import Request
from paddock.core.rules import Rule

log = logging.getLogger("paddock.store")


def gpu_spec_of(body: Mapping[str, Any]) -> GPUSpec:
    """Read what a GPU's owner says; nothing where another version's schema let something pass that is none."""
    try:
        return GPUSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        log.warning("spec of GPU %s cannot be read: %s", body["metadata"]["name"], error)
        return GPUSpec()


def gpu_status_of(body: Mapping[str, Any]) -> GPUStatus | None:
    """Read what is stored of a GPU; nothing where another version wrote what is none: then it is found out anew."""
    try:
        return GPUStatus.model_validate(body["status"]) if body.get("status") else None
    except ValidationError as error:
        log.warning("status of GPU %s cannot be read: %s", body["metadata"]["name"], error)
        return None


class Tombstones:
    """UIDs of objects that are gone: the answer of a write may arrive after the news of the object's end."""

    def __init__(self, most: int = 4096) -> None:
        self._gone: dict[str, None] = {}
        self._most = most

    def __contains__(self, uid: str) -> bool:
        return uid in self._gone

    def add(self, uid: str) -> None:
        """Note that an object is gone."""
        self._gone[uid] = None
        if len(self._gone) > self._most:
            del self._gone[next(iter(self._gone))]


class Latest:
    """Which state of each object of a kind is known.

    Lists and the answers of writes may be older than events, and events of two objects of one name come in any order:
    kopf hands each object's events on by itself.
    """

    def __init__(self) -> None:
        self._gone = Tombstones()
        self._known: dict[str, tuple[str, str]] = {}

    def take(self, type_: str | None, key: str, meta: Mapping[str, Any]) -> bool:
        """Note a state of an object, or its end; False when that is no news of the object that has the key now."""
        uid: str = meta["uid"]
        version = meta.get("resourceVersion", "")
        known_uid, known_version = self._known.get(key, (uid, ""))
        if type_ == "DELETED":
            self._gone.add(uid)
            if known_uid == uid:
                self._known.pop(key, None)
            return known_uid == uid
        if uid in self._gone or version == known_version != "" or older(version, known_version):
            return False
        self._known[key] = uid, version
        return True

    def missing(self, listed: Collection[str]) -> list[tuple[str, str]]:
        """Give key and UID of those that are known and not in a list: gone, or younger than the list."""
        return [(key, uid) for key, (uid, _) in self._known.items() if key not in listed]

    def is_gone(self, uid: str) -> bool:
        """Tell whether an object is known to be gone."""
        return uid in self._gone

    def is_another(self, key: str, uid: str) -> bool:
        """Tell whether an object of this key and another UID is known."""
        return key in self._known and self._known[key][0] != uid


class Deployments:
    """Every ModelDeployment by namespace/name."""

    def __init__(self) -> None:
        self._latest = Latest()
        self._all: dict[str, Deployment] = {}

    def __len__(self) -> int:
        return len(self._all)

    def get(self, key: str) -> Deployment | None:
        """Give one, if it exists."""
        return self._all.get(key)

    def is_current(self, one: Deployment) -> bool:
        """Tell whether one still is as it was read: its owner has not deleted it or changed its spec."""
        latest = self._all.get(one.key)
        same = latest is not None and (latest.uid, latest.generation) == (one.uid, one.generation)
        return same and latest is not None and not latest.deleting

    def is_gone(self, uid: str) -> bool:
        """Tell whether one of this UID is known to be gone."""
        return self._latest.is_gone(uid)

    def keys(self) -> list[str]:
        """Give all keys."""
        return list(self._all)

    def values(self) -> list[Deployment]:
        """Give all deployments."""
        return list(self._all.values())

    def apply(self, type_: str | None, body: Mapping[str, Any]) -> bool:
        """Take over an object; False when this state of it is known already."""
        meta = body["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        news = self._latest.take(type_, key, meta)
        if type_ == "DELETED":
            if news:
                self._all.pop(key, None)
            return True
        if news:
            self._all[key] = deployment_of(body)
        return news


class Replicas:
    """Every server pod by namespace/name, with an index by deployment."""

    def __init__(self) -> None:
        self._latest = Latest()
        self._all: dict[str, Replica] = {}
        self._of: dict[str, set[str]] = {}
        self._distrusted: dict[str, str] = {}
        """By UID of pods whose record is not the operator's: why."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: str) -> bool:
        return key in self._all

    def get(self, key: str) -> Replica | None:
        """Give one, if it exists."""
        return self._all.get(key)

    def values(self) -> list[Replica]:
        """Give all pods."""
        return list(self._all.values())

    def of(self, deployment: str) -> list[Replica]:
        """Give the pods of one deployment (namespace/name), by name."""
        return [self._all[key] for key in sorted(self._of.get(deployment, ()))]

    def apply(self, type_: str | None, body: Mapping[str, Any]) -> Replica | None:
        """Take over a pod; gives it when it is a server pod and this state of it is new."""
        replica = replica_of(body)
        if replica is None:
            return None
        owner = f"{replica.namespace}/{replica.deployment}"
        news = self._latest.take(type_, replica.key, body["metadata"])
        before = self._all.get(replica.key)
        replica = trusted(before, replica)
        if type_ == "DELETED":
            self._distrusted.pop(replica.uid, None)
        if not news:
            return replica if type_ == "DELETED" else None
        if before is not None:
            # Labels can be changed: it may have been another one's.
            del self._all[replica.key]
            self._of.get(f"{before.namespace}/{before.deployment}", set()).discard(replica.key)
        if type_ == "DELETED":
            return replica
        if (why := self._distrusted.get(replica.uid)) is not None:
            replica = replace(replica, record=None, altered=why)
        self._all[replica.key] = replica
        self._of.setdefault(owner, set()).add(replica.key)
        return replica

    def distrust(self, replica: Replica, why: str) -> None:
        """Believe no record of a pod any more."""
        self._distrusted[replica.uid] = why
        known = self._all.get(replica.key)
        if known is not None and known.uid == replica.uid:  # It may have gone while that was found out.
            self._all[replica.key] = replace(known, record=None, altered=why)


def older(version: str, known: str) -> bool:
    """Tell whether a resourceVersion is older than the known one; both are numbers on every API server there is."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)


def node_of(body: Mapping[str, Any]) -> Node:
    """Read a Node object."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    return Node(
        name=meta["name"],
        ready=ready,
        schedulable=not spec.get("unschedulable", False),
        labels=dict(meta.get("labels") or {}),
        taints=tuple(
            Taint(one["key"], one.get("value", ""), one.get("effect", "")) for one in spec.get("taints") or ()
        ),
        architecture=(status.get("nodeInfo") or {}).get("architecture") or "amd64",
        memory=_bytes((status.get("allocatable") or {}).get("memory")),
        budget=(meta.get("annotations") or {}).get(Annotation.HOST_BUDGET),
        resources=_extended(status.get("allocatable") or {}),
        granules=_granules(status.get("allocatable") or {}),
        capacity=_granules(status.get("capacity") or {}),
    )


def _extended(allocatable: Mapping[str, str]) -> dict[str, int]:
    """Give the extended resources of others than Paddock: those whose names have a domain that is not Kubernetes'."""
    return {
        name: _bytes(quantity) or 0
        for name, quantity in sorted(allocatable.items())
        if "/" in name and not name.partition("/")[0].endswith((GROUP, "kubernetes.io"))
    }


def _granules(quantities: Mapping[str, str]) -> dict[str, int]:
    """Give the extended resources that count the memory of GPUs."""
    return {name: _bytes(one) or 0 for name, one in sorted(quantities.items()) if is_counted(name)}


def _bytes(quantity: str | None) -> int | None:
    try:
        return int(parse_quantity(quantity)) if quantity else None
    except ValueError:
        return None


class Waiting:
    """Deployments that wait for a change of the fleet, among them the queue of those that wait for memory."""

    def __init__(self) -> None:
        self._all: dict[str, Queued | None] = {}
        self.complete = False
        """Whether all were looked at since the start: until then what was told before stays, for want of the others."""

    def __len__(self) -> int:
        return len(self._all)

    def in_order(self) -> list[str]:
        """Give all: the queue in its order, then the others in the order in which they came."""
        queue = sorted((one for one in self._all.values() if one is not None), key=lambda one: one.order)
        return [one.deployment for one in queue] + [key for key, one in self._all.items() if one is None]

    def add(self, key: str) -> None:
        """Note one that waits for something else than memory, unless it is known."""
        self._all.setdefault(key, None)

    def forget(self, key: str) -> bool:
        """Drop one; tells whether it had a place in the queue."""
        return self._all.pop(key, None) is not None

    def enqueue(self, deployment: Deployment, pod: str, request: Request) -> int:
        """Note what a replica of a deployment asks for in vain; gives the position to tell."""
        known = self._all.get(deployment.key)
        requests = {**(known.requests if known is not None else {}), pod: request}
        told = position(len(self.ahead_of(deployment)))
        stored = (deployment.status.get("queue") or {}).get("position")
        if not self.complete and isinstance(stored, int):
            told = stored
        self._all[deployment.key] = Queued(order_of(deployment), requests, told)
        return told

    def misplaced(self) -> list[str]:
        """Give those of the queue whose position is not any more what they were told."""
        queue = sorted((one for one in self._all.values() if one is not None), key=lambda one: one.order)
        return [one.deployment for ahead, one in enumerate(queue) if one.told != position(ahead)]

    def drop(self, key: str, pod: str) -> None:
        """Note that a deployment does not ask for a pod (namespace/name) any more."""
        known = self._all.get(key)
        if known is not None and pod in known.requests:
            left = {name: request for name, request in known.requests.items() if name != pod}
            self._all[key] = replace(known, requests=left) if left else None

    def keep_only(self, key: str, pods: set[str]) -> bool:
        """Drop what a deployment asked for other pods (namespace/name); tells whether it did."""
        known = self._all.get(key)
        gone = set(known.requests) - pods if known is not None else set()
        for pod in gone:
            self.drop(key, pod)
        return bool(gone)

    def ahead_of(self, deployment: Deployment) -> list[Queued]:
        """Give who comes before a deployment, in order."""
        return ahead_of((one for one in self._all.values() if one is not None), order_of(deployment))


@dataclass
class World:
    """What the operator has seen; shared by all workers, changed only by handlers."""

    deployments: Deployments = field(default_factory=Deployments)
    replicas: Replicas = field(default_factory=Replicas)
    nodes: dict[str, Node] = field(default_factory=dict)
    latest_nodes: Latest = field(default_factory=Latest)
    gone_nodes: set[str] = field(default_factory=set)
    """Names of nodes that were known and are gone."""
    runtime_classes: set[str] = field(default_factory=set)
    handlers: dict[str, str] = field(default_factory=dict)
    """The handler of each RuntimeClass."""
    latest_classes: Latest = field(default_factory=Latest)
    offers: dict[str, tuple[SliceDevice, ...]] = field(default_factory=dict)
    """What drivers for dynamic resource allocation offer, by node."""
    rules: dict[str, Rule] = field(default_factory=dict)
    """Of every PlacementPolicy, by name."""
    fleet_is_known: bool = False
    """Whether an agent has told of its devices, or had its time to."""
    waiting: Waiting = field(default_factory=Waiting)
    """Deployments that have no device yet; looked at again whenever room may have appeared."""
    making: set[str] = field(default_factory=set)
    """Pods (namespace/name) whose reservation is being written and that do not exist yet."""
