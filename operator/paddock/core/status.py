"""Turn what was observed and decided into the status of a ModelDeployment. Claims nothing that was not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paddock.api.modeldeployment import (
    Condition,
    ModelDeploymentStatus,
    Need,
    PlacedDevice,
    ReplicaPlacement,
)
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.deployment import Deployment
from paddock.core.objects import endpoint
from paddock.core.plan import Plan, wanted_replicas
from paddock.core.replica import Replica

Truth = Literal["True", "False", "Unknown"]
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition to be: status, reason, message."""

    status: Truth
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look at a deployment found."""

    accepted: Finding
    plan: Plan
    unplaced: Finding | None = None
    """Why a replica has no device; None when every one has."""
    need: Need | None = None


def status_of(deployment: Deployment, outcome: Outcome, now: str) -> ModelDeploymentStatus:
    """Give the whole status; `now` (RFC 3339) is used only for conditions that flip."""
    replicas = sorted((*outcome.plan.current, *outcome.plan.outdated), key=lambda one: (one.number, one.name))
    before = {one["type"]: one for one in deployment.status.get("conditions") or ()}
    findings = _findings(deployment, outcome, replicas)
    stored_need = deployment.status.get("need")
    return ModelDeploymentStatus(
        observed_generation=deployment.generation,
        replicas=len(replicas),
        ready_replicas=sum(one.ready for one in replicas),
        selector=",".join(f"{key}={value}" for key, value in sorted(deployment.selector.items())),
        endpoint=endpoint(deployment),
        need=outcome.need or (Need.model_validate(stored_need) if stored_need else None),
        placements=[placed for one in replicas if (placed := _placement(one))],
        conditions=[
            _condition(type_, finding, before.get(type_), deployment.generation, now)
            for type_, finding in findings.items()
        ],
    )


def _condition(
    type_: ConditionType, finding: Finding, before: Mapping[str, Any] | None, generation: int, now: str
) -> Condition:
    same = before is not None and before.get("status") == finding.status
    return Condition(
        type=type_,
        status=finding.status,
        reason=finding.reason,
        message=finding.message[:MESSAGE_LIMIT],
        observed_generation=generation,
        last_transition_time=before["lastTransitionTime"] if before is not None and same else now,
    )


def _placement(replica: Replica) -> ReplicaPlacement | None:
    record = replica.record
    if record is None:
        return None
    devices = []
    if record.gpu is not None:
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
        reason=record.reason,
        since=record.since,
    )


def _findings(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> dict[ConditionType, Finding]:
    suspended = deployment.spec is not None and deployment.spec.suspend
    off = Finding("False", Reason.SUSPENDED, "spec.suspend is true")
    available = off if suspended else _available(deployment, outcome, replicas)
    return {
        ConditionType.ACCEPTED: outcome.accepted,
        ConditionType.PLACED: off if suspended else _placed(deployment, outcome, replicas),
        ConditionType.VERIFIED: _verified(replicas),
        ConditionType.AVAILABLE: available,
        ConditionType.PROGRESSING: _progressing(deployment, outcome, replicas, available),
    }


def _placed(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> Finding:
    if outcome.unplaced is not None:
        return outcome.unplaced
    if outcome.accepted.status != "True" and len(outcome.plan.current) < wanted_replicas(deployment):
        return Finding("False", outcome.accepted.reason, f"not accepted: {outcome.accepted.message}")
    sentences = [one.record.reason for one in replicas if one.record is not None]
    if len(sentences) == 1:
        return Finding("True", Reason.PLACED, sentences[0])
    text = "; ".join(f"replica {one.number}: {one.record.reason}" for one in replicas if one.record is not None)
    return Finding("True", Reason.PLACED, text or "no replica is wanted")


def _verified(replicas: Sequence[Replica]) -> Finding:
    bad = [one for one in replicas if one.unverified]
    if bad:
        reason = Reason(bad[0].gate_reason) if bad[0].gate_reason in set(Reason) else Reason.NO_EVIDENCE
        return Finding("False", reason, "; ".join(f"{one.name}: {one.gate_message}" for one in bad))
    up = [one for one in replicas if one.verified]
    if up and len(up) == len(replicas):
        text = up[0].gate_message if len(up) == 1 else "; ".join(f"{one.name}: {one.gate_message}" for one in up)
        return Finding("True", Reason.BUFFERS_ON_DEVICE, text)
    if not replicas:
        return Finding("Unknown", Reason.AWAITING_EVIDENCE, "nothing runs")
    return Finding("Unknown", Reason.AWAITING_EVIDENCE, f"{len(up)} of {len(replicas)} replicas verified")


def _available(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica]) -> Finding:
    wanted = wanted_replicas(deployment)
    ready = sum(one.ready for one in replicas)
    if ready >= wanted:
        return Finding(
            "True", Reason.SERVING, f"{ready} of {wanted} replicas ready" if wanted else "no replica is wanted"
        )
    count = f"{ready} of {wanted} replicas ready"
    for one in replicas:
        if one.unverified:
            reason = Reason(one.gate_reason) if one.gate_reason in set(Reason) else Reason.NO_EVIDENCE
            return Finding("False", reason, f"{count}; {one.name}: {one.gate_message}")
        if one.waiting is not None:
            return Finding("False", one.waiting, f"{count}; {one.name}: {one.waiting_message}")
    if outcome.accepted.status != "True":
        return Finding("False", outcome.accepted.reason, f"{count}; {outcome.accepted.message}")
    if outcome.unplaced is not None:
        return Finding("False", outcome.unplaced.reason, f"{count}; {outcome.unplaced.message}")
    return Finding("False", Reason.STARTING, count)


def _progressing(deployment: Deployment, outcome: Outcome, replicas: Sequence[Replica], available: Finding) -> Finding:
    wanted = wanted_replicas(deployment)
    if outcome.plan.outdated:
        return Finding("True", Reason.ROLLING_OUT, f"{len(outcome.plan.outdated)} replicas have an older spec")
    if outcome.plan.leaving or len(replicas) > wanted:
        return Finding("True", Reason.SCALING, f"{len(outcome.plan.leaving)} pods are leaving")
    if available.status == "True":
        return Finding("False", Reason.COMPLETE, "what runs is what the spec asks for")
    if available.reason is Reason.SUSPENDED:
        return Finding("False", Reason.SUSPENDED, "spec.suspend is true")
    if available.reason in (Reason.STARTING, Reason.READING_HEADER, Reason.WAITING_FOR_DEVICE):
        return Finding("True", available.reason, available.message)
    return Finding("False", available.reason, available.message)
