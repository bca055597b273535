"""Turn what was observed and decided into the status of a ModelDeployment. Claims nothing that was not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from paddock.api.binding import Binder, PlacedBinding
from paddock.api.context import ContextChoice
from paddock.api.disruption import Disruption, LastDevice
from paddock.api.modeldeployment import (
    Condition,
    ModelDeploymentStatus,
    Need,
    PlacedDevice,
    Proof,
    ReplicaPlacement,
)
from paddock.api.queue import Queue, Shortage
from paddock.api.source import ModelStatus
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.deployment import Deployment
from paddock.core.objects import endpoint
from paddock.core.plan import Plan, told_of_record, wanted_replicas
from paddock.core.replica import Record, Replica

Truth = Literal["True", "False", "Unknown"]
MESSAGE_LIMIT = 2000
"""Characters of one message."""
MOST_SENTENCES = 5
"""Replicas that one message tells about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition to be: status, reason, message."""

    status: Truth
    reason: Reason
    message: str
    shortage: Shortage | None = None
    """What memory is missing, where that is the cause."""
    position: int | None = None
    """Place in the queue, of one that waits for a device."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look at a deployment found."""

    accepted: Finding
    plan: Plan
    unplaced: Finding | None = None
    """Why a replica has no device; None when every one has."""
    need: Need | None = None
    model: ModelStatus | None = None
    """What is known of the model's files."""
    context: ContextChoice | None = None
    doubt: Finding | None = None
    """What was found of the last server that was removed for being elsewhere, until another one is proven."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """Bytes that drivers show for servers on their devices, by namespace/name of the pod."""
    disruption: Disruption | None = None
    """The last time that a replica was asked to leave for another deployment."""


def status_of(deployment: Deployment, outcome: Outcome, now: str) -> ModelDeploymentStatus:
    """Give the whole status; `now` (RFC 3339) is used only for conditions that flip."""
    replicas = sorted((*outcome.plan.current, *outcome.plan.outdated), key=lambda one: (one.number, one.name))
    before = {one["type"]: one for one in deployment.status.get("conditions") or ()}
    findings = _findings(deployment, outcome, replicas)
    return ModelDeploymentStatus(
        observed_generation=deployment.generation,
        replicas=len(replicas),
        ready_replicas=sum(one.serving for one in replicas),
        selector=",".join(f"{key}={value}" for key, value in sorted(deployment.selector.items())),
        endpoint=endpoint(deployment),
        need=outcome.need or _stored_need(deployment),
        model=outcome.model,
        context=outcome.context,
        shortage=outcome.unplaced.shortage if outcome.unplaced is not None else None,
        queue=_queue(outcome.unplaced),
        last_disruption=_disruption(deployment, outcome),
        last_devices=_last_devices(deployment, replicas),
        placements=[placed for one in replicas if (placed := _placement(one, _proof(one, outcome, deployment)))],
        conditions=[
            _condition(type_, finding, before.get(type_), deployment.generation, now)
            for type_, finding in findings.items()
        ],
    )


def _queue(unplaced: Finding | None) -> Queue | None:
    return Queue(position=unplaced.position) if unplaced is not None and unplaced.position is not None else None


def _disruption(deployment: Deployment, outcome: Outcome) -> Disruption | None:
    """Give the last disruption, and whether its replica is still without a new server."""
    last = outcome.disruption
    if last is None:
        return None
    settled = len(outcome.plan.current) >= wanted_replicas(deployment) and not outcome.plan.outdated
    return last.model_copy(update={"waiting": None if settled else last.waiting})


def _last_devices(deployment: Deployment, replicas: Sequence[Replica]) -> list[LastDevice] | None:
    """Give where the replicas of a sticky deployment are, or were last."""
    if deployment.spec is None or not deployment.spec.placement.sticky:
        return None
    last = last_devices(deployment) | {
        one.number: one.record.gpu for one in replicas if one.record is not None and one.record.gpu is not None
    }
    return [LastDevice(replica=number, gpu=gpu) for number, gpu in sorted(last.items())]


def last_devices(deployment: Deployment) -> dict[int, str]:
    """Give the GPU objects that its replicas had last, by number, as the status tells."""
    try:
        known = [LastDevice.model_validate(one) for one in deployment.status.get("lastDevices") or ()]
    except ValidationError:
        return {}
    return {one.replica: one.gpu for one in known}


def last_disruption(deployment: Deployment) -> Disruption | None:
    """Give the last disruption that the status tells of; None when another version wrote it in another form."""
    try:
        stored = deployment.status.get("lastDisruption")
        return Disruption.model_validate(stored) if stored else None
    except ValidationError:
        return None


def changes(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Give the merge patch that makes `after` of `before`: what is absent now is taken off, also inside objects.

    An object that differs is given whole: somebody else may have taken it off meanwhile, and half of one is none.
    """
    differs = {name: value for name, value in after.items() if name not in before or value != before[name]}
    return {name: None for name in before if name not in after} | _whole(differs, before)


def _whole(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Give all of `after`, and within its objects the names that are to be taken off."""
    out = dict(after)
    for name, value in after.items():
        known = before.get(name)
        if isinstance(value, Mapping):
            known = known if isinstance(known, Mapping) else {}
            out[name] = {one: None for one in known if one not in value} | _whole(value, known)
    return out


def _condition(
    type_: ConditionType, finding: Finding, before: Mapping[str, Any] | None, generation: int, now: str
) -> Condition:
    same = before is not None and before.get("status") == finding.status
    return Condition(
        type=type_,
        status=finding.status,
        reason=finding.reason,
        message=_bounded(finding.message),
        observed_generation=generation,
        last_transition_time=before.get("lastTransitionTime", now) if before is not None and same else now,
    )


def _bounded(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"


def _stored_need(deployment: Deployment) -> Need | None:
    """Give the need of before; None when another version wrote it in another form."""
    try:
        return Need.model_validate(deployment.status["need"]) if deployment.status.get("need") else None
    except ValidationError:
        return None


def _proof(replica: Replica, outcome: Outcome, deployment: Deployment) -> Proof | None:
    """Say what proves a replica; what its driver shows stays as told before while nobody asks the driver."""
    if not replica.verified:
        return None
    size = outcome.observed.get(replica.key)
    if size is None:
        stored = (one for one in deployment.status.get("placements") or () if one.get("podName") == replica.name)
        size = ((next(stored, None) or {}).get("proof") or {}).get("observedBytes")
    driver = replica.gate_reason == Reason.PROCESS_ON_DEVICE
    return Proof(
        evidence="Driver" if driver else "Buffers", observed_bytes=size if driver and isinstance(size, int) else None
    )


def _binding(record: Record) -> PlacedBinding | None:
    try:
        binder = Binder(record.binder or "")
    except ValueError:
        return None
    return PlacedBinding(
        binder=binder, reason=record.binder_reason or "", exact_device=record.exact_device is not False
    )


def _placement(replica: Replica, proof: Proof | None) -> ReplicaPlacement | None:
    record = replica.record
    if record is None:
        return None
    devices = []
    if record.gpu is not None and (record.exact_device is not False or record.learned):
        devices = [
            PlacedDevice(
                gpu=record.gpu,
                uuid=record.uuid,
                pci_id=record.pci_id,
                name=record.name,
                name_in_pod=record.name_in_pod,
                backend=record.backend,
                need_bytes=record.need,
            )
        ]
    return ReplicaPlacement(
        replica=replica.number,
        pod_name=replica.name,
        node=record.node or replica.node,
        devices=devices,
        context_length=record.context or None,
        reason=record.reason,
        since=record.since,
        binding=_binding(record),
        proof=proof,
    )


def _findings(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> dict[ConditionType, Finding]:
    suspended = deployment.spec is not None and deployment.spec.suspend
    off = Finding("False", Reason.SUSPENDED, "spec.suspend is true")
    available = off if suspended else _told_why(_available(deployment, outcome, replicas), outcome)
    return {
        ConditionType.ACCEPTED: outcome.accepted,
        ConditionType.PLACED: off if suspended else _told_why(_placed(deployment, outcome, replicas), outcome),
        ConditionType.VERIFIED: _verified(replicas, None if suspended else outcome.doubt),
        ConditionType.AVAILABLE: available,
        ConditionType.PROGRESSING: _progressing(outcome, replicas, available),
    }


def _told_why(finding: Finding, outcome: Outcome) -> Finding:
    """Put who displaced a replica, or why its pod is replaced, before what it waits for."""
    going = (*outcome.plan.leaving, *(one.replica for one in outcome.plan.removals))
    spoiled = next((one for one in going if one.spoiled), None)
    if spoiled is not None and finding.reason in (Reason.WAITING_FOR_DEVICE, Reason.STARTING):
        text = f"{spoiled.name} is replaced, since {told_of_record(spoiled)}; {finding.message}"
        return replace(finding, status="False", reason=Reason.RECORD_CHANGED, message=text)
    last = outcome.disruption
    if finding.reason is not Reason.WAITING_FOR_DEVICE or last is None or last.kind != "Evicted" or not last.waiting:
        return finding
    text = f"{last.pod_name} left {last.gpu} for {last.by}: {last.message}; {finding.message}"
    return replace(finding, reason=Reason.DISPLACED, message=text)


def _join(sentences: Sequence[str]) -> str:
    """Put sentences together, as many as a reader reads."""
    more = f"; and {len(sentences) - MOST_SENTENCES} more" if len(sentences) > MOST_SENTENCES else ""
    return "; ".join(sentences[:MOST_SENTENCES]) + more


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _placed(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> Finding:
    if outcome.unplaced is not None:
        return outcome.unplaced
    wanted = wanted_replicas(deployment)
    placed = {one.number: one.record.reason for one in replicas if one.record is not None}
    if deployment.spec is None or (outcome.accepted.status != "True" and len(placed) < wanted):
        status: Truth = "Unknown" if outcome.accepted.status == "Unknown" else "False"
        return Finding(status, outcome.accepted.reason, f"nothing is placed before this: {outcome.accepted.message}")
    if len(placed) < wanted:
        count = f"{len(placed)} of {wanted} replicas placed"
        if outcome.plan.leaving:
            names = ", ".join(one.name for one in outcome.plan.leaving[:MOST_SENTENCES])
            return Finding("False", Reason.WAITING_FOR_DEVICE, f"{count}; waiting until {names} is gone")
        return Finding("Unknown", Reason.STARTING, count)
    if len(placed) == 1:
        return Finding("True", Reason.PLACED, next(iter(placed.values())))
    text = _join([f"replica {number}: {reason}" for number, reason in sorted(placed.items())])
    return Finding("True", Reason.PLACED, text or "no replica is wanted")


def _doubt(replica: Replica) -> Reason:
    """Give the reason for which evidence was found wanting."""
    return Reason(replica.gate_reason) if replica.gate_reason in set(Reason) else Reason.NO_EVIDENCE


def _verified(replicas: Sequence[Replica], doubt: Finding | None = None) -> Finding:
    bad = [one for one in replicas if one.unverified]
    if bad:
        return Finding("False", _doubt(bad[0]), _join([f"{one.name}: {one.gate_message}" for one in bad]))
    if doubt is not None and not any(one.verified for one in replicas):
        return doubt
    if not replicas:
        return Finding("Unknown", Reason.AWAITING_EVIDENCE, "nothing runs")
    up = [one for one in replicas if one.verified]
    if len(up) == len(replicas):
        text = up[0].gate_message if len(up) == 1 else _join([f"{one.name}: {one.gate_message}" for one in up])
        by_driver = all(one.gate_reason == Reason.PROCESS_ON_DEVICE for one in up)
        return Finding("True", Reason.PROCESS_ON_DEVICE if by_driver else Reason.BUFFERS_ON_DEVICE, text)
    return Finding("Unknown", Reason.AWAITING_EVIDENCE, f"{len(up)} of {len(replicas)} replicas verified")


def _told_of_servers(outcome: Outcome, replicas: Sequence[Replica]) -> tuple[Reason, str] | None:
    """Give what keeps a server from serving, or did so with the last one."""
    for one in replicas:
        if one.unverified:
            return _doubt(one), f"{one.name}: {one.gate_message}"
        if one.waiting is not None:
            return one.waiting, f"{one.name}: {one.waiting_message}"
    return (outcome.doubt.reason, outcome.doubt.message) if outcome.doubt is not None else None


def _available(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> Finding:
    if deployment.spec is None:
        return Finding("False", outcome.accepted.reason, outcome.accepted.message)
    wanted = wanted_replicas(deployment)
    ready = len({one.number for one in replicas if one.serving})
    count = f"{ready} of {wanted} replicas ready"
    if ready >= wanted:
        return Finding("True", Reason.SERVING, count if wanted else "no replica is wanted")
    if (told := _told_of_servers(outcome, replicas)) is not None:
        return Finding("False", told[0], f"{count}; {told[1]}".removesuffix(": "))
    if outcome.accepted.status != "True":
        return Finding("False", outcome.accepted.reason, f"{count}; {outcome.accepted.message}")
    if outcome.unplaced is not None:
        return Finding("False", outcome.unplaced.reason, f"{count}; {outcome.unplaced.message}")
    if any(one.needs_evidence for one in replicas):
        return Finding("False", Reason.AWAITING_EVIDENCE, count)
    return Finding("False", Reason.STARTING, count)


_UNDER_WAY = frozenset(
    {
        Reason.STARTING,
        Reason.FETCHING,
        Reason.READING_HEADER,
        Reason.WAITING_FOR_DEVICE,
        Reason.MAKING_ROOM,
        Reason.DISPLACED,
        Reason.RECORD_CHANGED,
        Reason.AWAITING_EVIDENCE,
    }
)


def _obstacle(outcome: Outcome) -> str:
    """Say what keeps a rollout from going on, if something does."""
    for one in outcome.plan.current:
        if one.unverified or one.waiting is not None:
            return f"; {one.name}: {one.gate_message if one.unverified else one.waiting_message}"
    return f"; {outcome.unplaced.message}" if outcome.unplaced is not None else ""


def _progressing(outcome: Outcome, replicas: Sequence[Replica], available: Finding) -> Finding:
    outdated, leaving = outcome.plan.outdated, outcome.plan.leaving
    if outcome.accepted.status == "False":
        kept = f"; {_several(len(replicas), 'replica')} kept as before" if replicas else ""
        return Finding("False", outcome.accepted.reason, f"{outcome.accepted.message}{kept}")
    if leaving or outcome.plan.removals:
        count = len(leaving) + len(outcome.plan.removals)
        reason = Reason.ROLLING_OUT if outdated else Reason.SCALING
        return Finding("True", reason, f"{_several(count, 'pod')} on the way out")
    last = outcome.disruption
    if last is not None and last.kind == "Moved" and last.pod_name in {one.name for one in outdated}:
        text = f"{last.pod_name} leaves {last.gpu} for {last.by}: {last.message}"
        return Finding("True", Reason.MOVING, text + _obstacle(outcome))
    if outdated:
        text = f"{_several(len(outdated), 'replica')} of an older spec to replace"
        return Finding("True", Reason.ROLLING_OUT, text + _obstacle(outcome))
    if available.status == "True":
        return Finding("False", Reason.COMPLETE, "what runs is what the spec asks for")
    if available.reason is Reason.SUSPENDED:
        return Finding("False", Reason.SUSPENDED, "spec.suspend is true")
    return Finding("True" if available.reason in _UNDER_WAY else "False", available.reason, available.message)
