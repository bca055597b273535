"""What the operator knows of one pod: a small frozen view of its JSON, and the record of its placement."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from paddock.api.vocabulary import READINESS_GATE, Annotation, Label, Reason
from paddock.core.failures import fetch_of

CONTAINER = "server"
"""Name of the container that runs llama-server."""
NO_CONTAINER = "-"
"""Stands for the container's id in the gate's message while none runs."""


@dataclass(frozen=True, slots=True)
class Record:
    """The decision as it is written on the pod, complete enough to rebuild everything from pods alone."""

    gpu: str | None
    node: str | None
    need: int
    reason: str
    since: str
    policy: str
    image: str
    uuid: str | None = None
    pci_id: str | None = None
    name: str = ""
    name_in_pod: str = ""
    backend: str = "CPU"
    description: str = ""
    host_weights: int = 0
    device_weights: int = 0
    host_need: int = 0
    """Host memory beside a device."""
    device_buffers: int = 0
    """What the server's buffers on the device are to be at most; 0 in the records of older operators."""
    context: int = 0
    """Tokens of each request; 0 in the records of older operators."""
    binder: str | None = None
    """How it got its device; None in the records of older operators."""
    binder_reason: str | None = None
    exact_device: bool | None = None
    """False: which device it is was learned afterwards."""
    learned: bool | None = None
    """Where exact_device is False: whether the device is the one that it was given, and not only planned with."""
    claim: str | None = None
    """Name of the ResourceClaim through which it gets its device."""

    def dumps(self) -> str:
        """Give it as JSON for an annotation."""
        return json.dumps({key: value for key, value in asdict(self).items() if value is not None}, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> "Record":
        """Read it back; fields of a newer operator are passed over. ValueError when it is no record."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 one kind of error for every text that is no record
        known = {"gpu": None, "node": None} | {name: raw[name] for name in cls.__slots__ if name in raw}
        for name, value in known.items():
            if not _fits(name, value):
                raise ValueError(f"{name} is {value!r}")
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(str(error)) from error


_NUMBERS = frozenset({"need", "host_weights", "device_weights", "host_need", "device_buffers", "context"})
_OPTIONAL = frozenset({"gpu", "node", "uuid", "pci_id", "binder", "binder_reason", "claim"})


def _fits(name: str, value: object) -> bool:
    """Tell whether a field of a record may have this value: whoever may change pods may write anything there."""
    if name in _NUMBERS:
        return type(value) is int and value >= 0
    if name in ("exact_device", "learned"):
        return value is None or isinstance(value, bool)
    return isinstance(value, str) or (value is None and name in _OPTIONAL)


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a deployment."""

    namespace: str
    name: str
    uid: str
    deployment: str
    owner_uid: str
    number: int
    revision: str
    placement_spec: str
    record: Record | None
    phase: str = "Pending"
    deleting: bool = False
    scheduled: bool = False
    ready: bool = False
    """Kubernetes' Ready condition: containers and gate."""
    container_ready: bool = False
    container_id: str = ""
    running: bool = False
    restarts: int = 0
    gate: str = ""
    """Status of the readiness gate: True, False, or empty when never set."""
    gate_container: str = ""
    """Container id that the gate was set for."""
    gate_reason: str = ""
    gate_message: str = ""
    waiting: Reason | None = None
    """What keeps it from running, as far as Kubernetes says."""
    waiting_message: str = ""
    node: str | None = None
    address: str = ""
    """IP address of the pod."""
    fetch_failed: bool = False
    """Whether its files cannot be fetched until somebody changes something."""
    altered: str = ""
    """What somebody else than the operator did to the record; `record` is then the one before, if that is known."""

    @property
    def key(self) -> str:
        """namespace/name of the pod."""
        return f"{self.namespace}/{self.name}"

    @property
    def failed(self) -> bool:
        """Whether the kubelet will never run it (again), or in vain."""
        return self.phase in ("Failed", "Succeeded") or self.fetch_failed

    @property
    def spoiled(self) -> bool:
        """Whether nobody knows any more what was decided for it: somebody changed its record."""
        return self.record is None and self.altered != ""

    @property
    def verified(self) -> bool:
        """Whether the gate is open for the container that runs now."""
        return self.gate == "True" and self.gate_container == self.container_id != ""

    @property
    def serving(self) -> bool:
        """Whether it gets traffic that it is known to answer on its own device: Ready, and verified as it runs now."""
        return self.ready and self.verified

    @property
    def unverified(self) -> bool:
        """Whether evidence for the container that runs now was found wanting."""
        return self.gate == "False" and self._judged

    @property
    def needs_evidence(self) -> bool:
        """Whether the server is up and its log was not judged yet."""
        return self.container_ready and not self.deleting and self.container_id != "" and not self._judged

    @property
    def comes_up(self) -> bool:
        """Whether the server runs, is not up as far as the kubelet has told, and was not judged yet."""
        return self.running and not self.container_ready and not self.deleting and not self._judged

    @property
    def _judged(self) -> bool:
        """Whether the gate tells of the container that runs now, or of none as long as none does.

        A gate that awaits evidence tells of none.
        """
        return (
            self.gate_container == (self.container_id or NO_CONTAINER) and self.gate_reason != Reason.AWAITING_EVIDENCE
        )

    @property
    def gate_is_stale(self) -> bool:
        """Whether the gate still tells of a container that has ended."""
        return self.gate == "True" and self.gate_container != self.container_id


def replica_of(pod: Mapping[str, Any]) -> Replica | None:
    """Read a pod; None when it is not a server pod of a ModelDeployment."""
    meta = pod["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    deployment = labels.get(Label.DEPLOYMENT)
    if not deployment or labels.get(Label.COMPONENT) != Label.SERVER:
        return None
    status = pod.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    containers = [one for one in status.get("containerStatuses") or () if one["name"] == CONTAINER]
    container: Mapping[str, Any] = containers[0] if containers else {}
    gate = conditions.get(READINESS_GATE, {})
    gate_container, _, gate_message = gate.get("message", "").partition(" ")
    owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    waiting, waiting_message = _waiting(status, conditions, container, pod.get("spec") or {})
    fetched = fetch_of(status)
    if fetched is not None and (waiting is None or fetched.final):  # without its files a server fails, too
        waiting, waiting_message = fetched.reason, fetched.message
    number = annotations.get(Annotation.REPLICA, "0")
    record, altered = _record(annotations.get(Annotation.PLACEMENT), pod.get("spec") or {})
    return Replica(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        deployment=deployment,
        owner_uid=owners[0].get("uid", "") if owners else "",
        number=int(number) if _NUMBER.fullmatch(number) else 0,
        revision=annotations.get(Annotation.REVISION, ""),
        placement_spec=annotations.get(Annotation.PLACEMENT_SPEC, ""),
        record=record,
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        scheduled=conditions.get("PodScheduled", {}).get("status") == "True",
        ready=conditions.get("Ready", {}).get("status") == "True",
        container_ready=bool(container.get("ready")),
        container_id=container.get("containerID", "") if "running" in (container.get("state") or {}) else "",
        running="running" in (container.get("state") or {}),
        restarts=container.get("restartCount", 0),
        gate=gate.get("status", ""),
        gate_container=gate_container,
        gate_reason=gate.get("reason", ""),
        gate_message=gate_message,
        waiting=waiting,
        waiting_message=waiting_message[:1000],
        node=(pod.get("spec") or {}).get("nodeName"),
        address=status.get("podIP", ""),
        fetch_failed=fetched is not None and fetched.final,
        altered=altered,
    )


def _record(text: str | None, spec: Mapping[str, Any]) -> tuple[Record | None, str]:
    """Read a pod's record; where it is none, or not of this pod, gives what is wrong with it."""
    if text is None:
        return None, "it was removed"
    try:
        record = Record.loads(text)
    except ValueError as error:
        return None, f"it cannot be read: {error}"[:LONGEST_ALTERED]
    served = _device_argument(spec)
    if served is not None and (served == "none") != (record.gpu is None):
        return None, f"it says {record.gpu or 'the CPU'}, and the server was started with --device {served}"[
            :LONGEST_ALTERED
        ]
    return record, ""


LONGEST_ALTERED = 300
"""Characters about a record that somebody has altered."""


def _device_argument(spec: Mapping[str, Any]) -> str | None:
    """Give the device that the server was told, which nobody can change in a pod; None where it was told none."""
    container: Mapping[str, Any] = next((one for one in spec.get("containers") or () if one["name"] == CONTAINER), {})
    args = container.get("args") or []
    return next((value for name, value in pairwise(args) if name == "--device"), None)


_LEARNED = ("gpu", "uuid", "pci_id", "name", "description", "learned")
"""What the operator writes anew once it has learned which card a pod was given."""


def trusted(known: Replica | None, told: Replica) -> Replica:
    """Give a pod as it is told now with the record that the operator wrote: that of before, if it has another now."""
    if known is None or known.uid != told.uid or known.record is None or told.record == known.record:
        return told
    before, after = asdict(known.record), asdict(told.record) if told.record is not None else {}
    differs = [name for name, value in before.items() if name in after and after[name] != value]
    if after and known.record.exact_device is False and not known.record.learned and set(differs) <= set(_LEARNED):
        return told
    what = "; ".join(f"{name} was {before[name]!r} and became {after[name]!r}" for name in differs)
    return replace(told, record=known.record, altered=(what or told.altered)[:LONGEST_ALTERED])


_NUMBER = re.compile(r"[0-9]{1,6}")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_REFUSED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_ENDED_WHILE_LOADING = 143
"""llama-server's exit code after SIGTERM while it loads; once it serves, SIGTERM ends it with 0."""
_ADMISSION = ("UnexpectedAdmissionError", "NodeAffinity", "OutOf", "TopologyAffinityError", "Admission")


def _waiting(
    status: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    container: Mapping[str, Any],
    spec: Mapping[str, Any],
) -> tuple[Reason | None, str]:
    """Tell what keeps a pod from serving, in our words and with Kubernetes' own message."""
    scheduled = conditions.get("PodScheduled", {})
    if status.get("phase") == "Failed":
        reason = status.get("reason", "")
        text = f"{reason}: {status.get('message', '')}".strip(": ")
        return (Reason.ADMISSION_FAILED if reason.startswith(_ADMISSION) else Reason.SERVER_FAILED), text
    if scheduled.get("status") == "False":
        return Reason.UNSCHEDULABLE, scheduled.get("message", "")
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _PULLING:
        return Reason.IMAGE_PULL_FAILED, waiting.get("message", waiting["reason"])
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    if ended and not container.get("ready"):
        return _ended(ended, container.get("restartCount", 0), spec)
    if waiting.get("reason") in _REFUSED:
        return Reason.SERVER_FAILED, f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
    return None, ""


def _ended(ended: Mapping[str, Any], restarts: int, spec: Mapping[str, Any]) -> tuple[Reason, str]:
    """Tell how the container ended."""
    again = f" ({restarts} restarts)" if restarts > 1 else ""
    if ended.get("reason") == "OOMKilled":
        return Reason.OUT_OF_MEMORY, f"the container was ended for exceeding its memory limit{again}"
    if ended.get("exitCode") == _ENDED_WHILE_LOADING:
        probe = next(
            (one.get("startupProbe") or {} for one in spec.get("containers") or () if one["name"] == CONTAINER), {}
        )
        budget = probe.get("failureThreshold", 0) * probe.get("periodSeconds", 10)
        within = f" within {budget} seconds" if budget else ""
        return Reason.STARTUP_TIMEOUT, f"the server did not finish loading{within}{again}"
    return Reason.SERVER_FAILED, f"the server exited with code {ended.get('exitCode')}{again}"
