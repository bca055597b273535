"""Why a deployment is where it is: what was recorded, and beside it what the same question would give now.

Pure: values in, values out. Nothing of the past is worked out again; what is computed is marked as of now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paddock.api.modeldeployment import Need, ReplicaPlacement
from paddock.api.vocabulary import VERDICTS, ConditionType, Verdict
from paddock.cli.headers import Headers
from paddock.cli.reading import Gpu, Model
from paddock.controller.store import node_of
from paddock.core.filters import Judged
from paddock.core.fleet import Device, Fleet, Node, device_of
from paddock.core.moves import Tenant
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import round_up
from paddock.core.request import Request, request_of
from paddock.core.rules import Rule, rules_for
from paddock.core.smaller import smaller
from paddock.core.whatif import other_policies, what_ifs

JSON = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What could be read of the cluster; None where the user may not."""

    gpus: Sequence[Gpu] | None
    nodes: Sequence[JSON] | None
    ready_pods: frozenset[str] | None
    """namespace/name of the server pods that are Ready."""
    rules: tuple[Rule, ...] | None = ()
    """Of the PlacementPolicies."""
    models: Sequence[Model] | None = None
    """The ModelDeployments of all namespaces."""


@dataclass(frozen=True)
class Holder:
    """Who holds memory of a device. Bytes; no deployment: something that Paddock did not place."""

    gpu: str
    deployment: str | None
    bytes: int


@dataclass(frozen=True)
class Now:
    """The answer that placement would give now, as if the replica itself held nothing."""

    replica: int
    need: int
    answer: Placement | Unplaceable
    judged: tuple[Judged, ...]
    holders: tuple[Holder, ...] = ()
    held: str | None = None
    """The GPU object that the replica has."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted, since it cannot be seen from here."""
    helps: tuple[str, ...] = ()
    """Where there is no place: changes with which there is one, each computed."""
    otherwise: tuple[str, ...] = ()
    """Where there is one: the policies with which it would be another, each computed."""


@dataclass(frozen=True)
class Explanation:
    """All that is known."""

    model: Model
    now: Now | None = None
    gpus: Mapping[str, Gpu] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether a wanted replica has no place."""
        return len(self.model.status.placements) < self.model.wanted

    @property
    def sentences(self) -> list[str]:
        """One sentence per replica: where it is and why; or why there is none."""
        model = self.model
        placements = model.status.placements
        several = len(placements) > 1 or model.wanted > 1
        out = [
            f"{model.name}{f' (replica {one.replica})' if several else ''} "
            f"{'is' if _on_cpu(one) else 'is on'} {one.reason}."
            for one in placements
        ]
        if self.pending or not out:
            out.append(_waiting(model))
        return out


def _on_cpu(placement: ReplicaPlacement) -> bool:
    return placement.reason.startswith("on ")


def _waiting(model: Model) -> str:
    """Say why a replica has no place, from the conditions."""
    if model.spec is not None and model.spec.suspend:
        return f"{model.name} is suspended: it holds no GPU."
    if model.wanted == 0:
        return f"{model.name} has no replicas: it holds no GPU."
    for type_ in (ConditionType.ACCEPTED, ConditionType.PLACED, ConditionType.AVAILABLE):
        found = model.condition(type_)
        if found is not None and found.status != "True":
            return f"{model.name} has no GPU yet ({found.reason}): {found.message.rstrip('.')}."
    return f"{model.name} has no GPU yet: the operator has not looked at it."


def explain(model: Model, seen: Seen, replica: int | None = None, header: Headers | None = None) -> Explanation:
    """Explain a deployment; `now` is about the given replica, else the first without a place, else the first.

    With the model's header, smaller contexts and caches are tried, too.
    """
    if seen.gpus is None or model.spec is None or not model.wanted:
        return Explanation(model)
    gpus = {gpu.name: gpu for gpu in seen.gpus}
    placed = {one.replica: one for one in model.status.placements}
    if replica is None:
        replica = next((number for number in range(model.wanted) if number not in placed), min(placed, default=0))
    own = placed.get(replica)
    need = _need(model.status.need, own)
    if need is None:
        return Explanation(model, None, gpus)
    fleet, assumptions = fleet_of(seen, own, model.namespace)
    mine = f"{model.namespace}/{model.name}"
    fleet = fleet.without(one.pod for gpu in seen.gpus for one in gpu.status.promises if one.deployment == mine)
    request = _request(model, need, replica, own, rules_for(model.namespace, seen.rules or ()))
    answer = place(request, fleet)
    helps, otherwise = _changes(request, fleet, answer, seen, (model, header))
    judged = answer.judged
    held = own.devices[0].gpu if own and own.devices else None
    holders = tuple(holder for one in judged for holder in holders_of(one.device))
    return Explanation(model, Now(replica, need, answer, judged, holders, held, assumptions, helps, otherwise), gpus)


def _changes(
    request: Request,
    fleet: Fleet,
    answer: Placement | Unplaceable,
    seen: Seen,
    asked: tuple[Model, Headers | None],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give what would help where there is no place, and what would be another place where there is one."""
    model, header = asked
    if isinstance(answer, Placement):
        return (), tuple(f"{one.change} it would go to {one.gpu}" for one in other_policies(request, fleet, answer))
    found = list(what_ifs(request, fleet, answer, tenants_of(seen, fleet), model.key))
    if header is not None and model.spec is not None:
        found += smaller(request, fleet, header.model, model.spec.serving, header.beside)
    return tuple(f"{one.change} it would get {one.gpu}" for one in found), ()


def tenants_of(seen: Seen, fleet: Fleet) -> list[Tenant]:
    """Give who has memory and could be thought of as moved or evicted: the replicas whose deployments can be read."""
    models = {one.key: one for one in seen.models or ()}
    out = []
    for device in fleet.devices:
        for claim in device.claims:
            model = models.get(claim.deployment)
            if model is None or model.spec is None:
                continue
            own = next(
                (one for one in model.status.placements if f"{model.namespace}/{one.pod_name}" == claim.pod), None
            )
            number = own.replica if own is not None else 0
            rules = rules_for(model.namespace, seen.rules or ())
            out.append(
                Tenant(
                    owner=claim.pod,
                    device=device.gpu,
                    need=claim.bytes,
                    deployment=claim.deployment,
                    priority=model.spec.priority,
                    since=own.since if own is not None else "",
                    movable=True,
                    evictable=True,
                    request=_request(model, claim.bytes, number, own, rules),
                )
            )
    return out


def _need(need: Need | None, own: ReplicaPlacement | None) -> int | None:
    """Give the bytes that a replica reserves on a device."""
    if own is not None and own.devices:
        return own.devices[0].need_bytes
    return round_up(need.device_bytes) if need is not None else None


def _request(model: Model, need: int, replica: int, own: ReplicaPlacement | None, rules: tuple[Rule, ...]) -> Request:
    spec = model.spec
    assert spec is not None  # noqa: S101 the caller looked
    siblings = [one.pod_name for one in model.status.placements if own is None or one.pod_name != own.pod_name]
    known = model.status.need
    host, token = (known.host_bytes, known.bytes_per_token or 0) if known is not None else (0, 0)
    return replace(
        request_of(spec, need, host, token, rules),
        needs=dict(known.by_backend or {}) if known is not None and (own is None or not own.devices) else {},
        siblings=frozenset(f"{model.namespace}/{name}" for name in siblings),
        seed=f"{model.uid} {replica}",
    )


def fleet_of(seen: Seen, own: ReplicaPlacement | None, namespace: str) -> tuple[Fleet, tuple[str, ...]]:
    """Build the fleet as it is now without the replica's own memory, and say what had to be assumed."""
    gpus = seen.gpus or ()
    assumptions = ["the model file is within reach of every node", "no memory is kept back by the operator's settings"]
    everyone = {one.pod for gpu in gpus for one in gpu.status.reservations}
    resident = seen.ready_pods if seen.ready_pods is not None else frozenset(everyone)
    if seen.ready_pods is None:
        assumptions.append("every server has loaded its model (you may not list pods of all namespaces)")
    if seen.rules is None:
        assumptions.append("no PlacementPolicy holds here (you may not list them)")
    if seen.nodes is None:
        assumptions.append("every node is Ready (you may not list nodes)")
        nodes = {gpu.status.node: Node(gpu.status.node) for gpu in gpus}
    else:
        nodes = {node.name: node for node in map(node_of, seen.nodes)}
    pod = f"{namespace}/{own.pod_name}" if own else ""
    devices = sorted((device_of(gpu.name, gpu.status, resident, gpu.spec) for gpu in gpus), key=lambda one: one.gpu)
    return Fleet(nodes, tuple(devices)).without([pod]), tuple(assumptions)


def holders_of(device: Device) -> Iterable[Holder]:
    """Give who holds the memory of a device: the deployments, then what Paddock did not place."""
    for one in device.holders(0):
        yield Holder(device.gpu, one.deployment, one.bytes)


def to_dict(explanation: Explanation) -> JSON:
    """Give the explanation as JSON. What was recorded and what is computed now are kept apart."""
    model, now = explanation.model, explanation.now
    recorded = {
        "sentences": explanation.sentences,
        "placements": [one.to_dict() for one in model.status.placements],
        "need": model.status.need.to_dict() if model.status.need else None,
        "context": model.status.context.to_dict() if model.status.context else None,
        "conditions": [one.to_dict() for one in model.status.conditions],
        "lastDisruption": model.status.last_disruption.to_dict() if model.status.last_disruption else None,
        "queue": model.status.queue.to_dict() if model.status.queue else None,
        "shortage": model.status.shortage.to_dict() if model.status.shortage else None,
    }
    out: JSON = {"name": model.name, "namespace": model.namespace, "pending": explanation.pending, "recorded": recorded}
    out["now"] = None if now is None else _now_to_dict(now)
    return out


def _now_to_dict(now: Now) -> JSON:
    return {
        "replica": now.replica,
        "needBytes": now.need,
        "placed": isinstance(now.answer, Placement),
        "answer": now.answer.reason if isinstance(now.answer, Placement) else now.answer.message,
        "held": now.held,
        "assumptions": list(now.assumptions),
        "wouldHelp": list(now.helps),
        "otherPolicies": list(now.otherwise),
        "devices": [
            {
                "gpu": one.device.gpu,
                "node": one.device.node,
                "name": one.device.name,
                "verdict": one.verdict.value,
                "detail": one.detail,
                "meaning": VERDICTS[one.verdict].meaning,
                "availableBytes": one.available,
                "shortfallBytes": one.shortfall,
                "held": one.device.gpu == now.held,
            }
            for one in ranked(now.judged)
        ],
        "holders": [{"gpu": one.gpu, "deployment": one.deployment, "bytes": one.bytes} for one in now.holders],
    }


_ORDER = {verdict: number for number, verdict in enumerate([Verdict.CHOSEN, Verdict.FITS, Verdict.NO_ROOM])}


def ranked(judged: Iterable[Judged]) -> list[Judged]:
    """Sort by how near a device came: chosen, fitting, short of room, then the rest; by node and index within."""
    return sorted(
        judged,
        key=lambda one: (_ORDER.get(one.verdict, len(_ORDER)), one.device.node, one.device.index or 0, one.device.gpu),
    )
