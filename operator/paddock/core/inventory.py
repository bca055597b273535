"""Turn an agent's report into what the GPU objects of its node should say."""

from collections.abc import Mapping, Sequence

from paddock.api.gpu import Alias, DeviceType, GPUStatus, Memory
from paddock.api.modeldeployment import Condition
from paddock.api.report import DeviceUse, GgmlType, ListedDevice, NodeReport
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.quantity import mebibytes, round_down

MOST_NAMED = 3
"""Deployments that are named in words."""
_TYPES = {GgmlType.GPU: DeviceType.DISCRETE, GgmlType.IGPU: DeviceType.INTEGRATED}


def gpu_name(node: str, device: ListedDevice) -> str:
    """Give the name of a device's GPU object: the node and the most lasting identity that is known.

    The PCI address, unless partitions share it; then the driver's identifier; then backend and position.
    """
    if device.pci_id is not None:
        return f"{node}-{device.pci_id.replace(':', '-').replace('.', '-')}".lower()
    if device.uuid is not None:
        return f"{node}-{device.uuid}".lower()
    return f"{node}-{device.backend}-{device.raw_index}".lower()


def observe(node: str, report: NodeReport, now: str) -> dict[str, GPUStatus]:
    """Give the status of each physical device that the report lists, without reservations, by GPU name."""
    physical = [one for one in report.devices if one.duplicate_of is None and one.type in (GgmlType.GPU, GgmlType.IGPU)]
    plain = [gpu_name(node, one) for one in physical]
    out: dict[str, GPUStatus] = {}
    for device, name in zip(physical, plain, strict=True):
        # Partitions of one card share its PCI address; each is a device of its own.
        unique = name if plain.count(name) == 1 else f"{name}-{(device.uuid or str(device.raw_index)).lower()}"
        out[unique] = _status(node, device, report, now)
    return out


def _status(node: str, device: ListedDevice, report: NodeReport, now: str) -> GPUStatus:
    twins = [one for one in report.devices if one.duplicate_of == device.name]
    known = device.memory_total is not None
    ready = _ready(
        now,
        Reason.LISTED if known else Reason.MEMORY_UNKNOWN,
        "" if known else "the driver gives no memory size",
        ok=known,
    )
    return GPUStatus(
        node=node,
        index=device.index,
        uuid=device.uuid,
        pci_id=device.pci_id,
        name=device.name,
        description=device.description,
        backends=[device.backend, *(twin.backend for twin in twins)],
        aliases=[Alias(backend=twin.backend, name=twin.name) for twin in twins],
        raw_index=device.raw_index,
        type=DeviceType.REMOTE if device.backend == "RPC" else _TYPES[device.type],
        ambiguous=True if device.ambiguous else None,
        memory=Memory(
            total=mebibytes(device.memory_total) if device.memory_total is not None else None,
            free=mebibytes(round_down(device.memory_free)) if device.memory_free is not None else None,
        ),
        compute_capability=device.compute_capability,
        driver=report.driver_version if device.uuid is not None else None,
        memory_bandwidth=device.memory_bandwidth,
        plugin=device.plugin,
        bus=device.bus,
        conditions=[ready],
    )


def _ready(now: str, reason: Reason, message: str, *, ok: bool) -> Condition:
    return Condition(
        type=ConditionType.READY,
        status="True" if ok else "False",
        reason=reason,
        message=message or "the node's agent lists it",
        last_transition_time=now,
    )


def not_ready(status: GPUStatus, reason: Reason, message: str, now: str) -> GPUStatus:
    """Give the same status with Ready=False: the device keeps its identity and reservations."""
    return status.model_copy(update={"conditions": [_ready(now, reason, message, ok=False)]})


def merge(observed: GPUStatus, stored: GPUStatus | None) -> GPUStatus:
    """Put reservations, and the time of an unchanged condition, of the stored status onto an observed one."""
    if stored is None:
        return observed
    before = {one.type: one for one in stored.conditions}
    conditions = [
        one.model_copy(update={"last_transition_time": before[one.type].last_transition_time})
        if one.type in before and before[one.type].status == one.status
        else one
        for one in observed.conditions
    ]
    return observed.model_copy(
        update={
            "learned": stored.learned,
            "reservations": stored.reservations,
            "promises": stored.promises,
            "apart": stored.apart,
            "mismatches": stored.mismatches,
            "last_disruption": stored.last_disruption,
            "deployments": stored.deployments,
            "used_by": stored.used_by,
            "memory": observed.memory.model_copy(update={"reserved": stored.memory.reserved}),
            "conditions": conditions,
        }
    )


def in_words(deployments: Sequence[str]) -> str | None:
    """Give some names and how many there are beside them; None where there are none."""
    more = f" and {len(deployments) - MOST_NAMED} more" if len(deployments) > MOST_NAMED else ""
    return ", ".join(deployments[:MOST_NAMED]) + more or None


def faults_in_words(report: NodeReport) -> str:
    """Give the faults of a report as one sentence; empty when there are none."""
    return "; ".join(f"{fault.code}: {fault.message}" for fault in report.faults)[:1000]


def vanished(stored: Mapping[str, GPUStatus], observed: Mapping[str, GPUStatus], node: str) -> list[str]:
    """Give the names of the node's GPU objects that the report does not list."""
    return [name for name, status in stored.items() if status.node == node and name not in observed]


def _uses(reports: Sequence[NodeReport]) -> list[DeviceUse] | None:
    """Join who uses what; the first agent that sees a card is heard."""
    seen = [one for report in reports for one in report.uses or ()]
    if all(report.uses is None for report in reports):
        return None
    return list({one.pci_id: one for one in reversed(seen)}.values())


def combine(reports: Mapping[str, NodeReport]) -> NodeReport:
    """Join the reports of several agents on one node, by the name of the agent pod.

    A device that an earlier report lists under the same PCI address is a duplicate in a later one.
    """
    ordered = [reports[name] for name in sorted(reports)]
    if len(ordered) == 1:
        return ordered[0]
    first: dict[str, str] = {}
    devices: list[ListedDevice] = []
    for report in ordered:
        for device in report.devices:
            known = first.get(device.pci_id or "")
            if known is not None and device.duplicate_of is None:
                devices.append(device.model_copy(update={"duplicate_of": known, "index": None}))
            else:
                devices.append(device)
        for device in report.devices:
            if device.pci_id is not None and device.duplicate_of is None:
                first.setdefault(device.pci_id, device.name)
    base = next((one for one in ordered if one.driver_version), ordered[0])
    return base.model_copy(
        update={
            "devices": devices,
            "faults": [fault for one in ordered for fault in one.faults],
            "model_roots": sorted({root for one in ordered for root in one.model_roots}),
            "uses": _uses(ordered),
            "given": next((one.given for one in ordered if one.given is not None), None),
            "troubles": list({one.pci_id: one for report in reversed(ordered) for one in report.troubles}.values()),
        }
    )
