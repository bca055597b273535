"""Pick one device for one replica: `place(request, fleet) -> Placement | Unplaceable`.

Filter, rank, pick. Values in, values out; the answer does not depend on the order in which devices are listed, since
the last tie-break is a fixed total order. The choice is made class by class; every device's own verdict with numbers is
worked out only for who reads it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import nsmallest

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.choice import choose
from paddock.core.filters import Judged, describe, judge_all, names, node_refusal
from paddock.core.fleet import Device, Fleet
from paddock.core.quantity import human
from paddock.core.request import Request
from paddock.core.survey import Part, Survey, named, survey, survey_of
from paddock.core.view import Member

Judge = Callable[[], tuple[Judged, ...]]


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision. No device means the CPU."""

    device: Device | None
    need: int
    reason: str
    judge: Judge = field(default=tuple, compare=False, repr=False)
    node: str | None = None
    """The device's node. On the CPU: a node that has the file, or None when the scheduler may pick any."""

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Every device with its verdict, in the order of the fleet; worked out on first use."""
        return self.judge()


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """No device, and why."""

    reason: Reason
    message: str
    judge: Judge = field(default=tuple, compare=False, repr=False)
    nearest: Judged | None = None
    """Where only memory is missing: the device that came nearest. What it lacks is its `shortage`."""

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Every device with its verdict, in the order of the fleet; worked out on first use."""
        return self.judge()


MOST_DETAILS = 4
"""Devices that one message tells about."""
SHORT = (Verdict.NO_ROOM, Verdict.HOST_MEMORY, Verdict.OVER_QUOTA)
"""Verdicts that go away by waiting; what stands further left is told first."""


def place(request: Request, fleet: Fleet) -> Placement | Unplaceable:
    """Pick a device for one replica, or say why there is none."""
    if request.on_cpu:
        if request.allow_cpu:
            return _on_cpu(request, fleet, "gpuLayers is 0", tuple)
        return Unplaceable(
            Reason.CPU_NOT_ALLOWED, "serving.gpuLayers is 0, which needs placement.allowCPU to be true; it is false"
        )
    if request.devices:
        return _verbatim(request, fleet)
    found = survey(request, fleet)
    fitting = found.of(Verdict.FITS)
    if request.allow_integrated is AllowIntegrated.AUTO:
        fitting = [part for part in fitting if _type(part) is DeviceType.DISCRETE] or fitting
    if fitting:
        best, why = choose(fitting, request, fleet)
        return _chosen(best, request, fleet, why)
    if request.allow_cpu:
        why = f"placement.allowCPU is true and {_count(found.count())}"
        return _on_cpu(request, fleet, why, _verdicts(request, fleet))
    return _unplaceable(request, fleet, found)


def _type(part: Part) -> DeviceType:
    return part.members[0].device.type


def _verdicts(request: Request, fleet: Fleet, chosen: str | None = None) -> Judge:
    """Give what judges every device, once and not before somebody wants to know."""
    return cache(partial(_judge, request, fleet, chosen))


def _judge(request: Request, fleet: Fleet, chosen: str | None) -> tuple[Judged, ...]:
    """Judge every device for itself, as it was when one was chosen."""
    judged = judge_all(request, fleet)
    fits = {one.device.type for one in judged if one.verdict is Verdict.FITS}
    rather = request.allow_integrated is AllowIntegrated.AUTO and not request.devices and DeviceType.DISCRETE in fits

    def final(one: Judged) -> Judged:
        if one.device.gpu == chosen:
            return one._replace(verdict=Verdict.CHOSEN)
        if rather and one.verdict is Verdict.FITS and one.device.type is DeviceType.INTEGRATED:
            return one._replace(verdict=Verdict.TYPE_NOT_ALLOWED, why="a discrete GPU fits")
        return one

    return tuple(map(final, judged))


def _on_cpu(request: Request, fleet: Fleet, why: str, judge: Judge) -> Placement | Unplaceable:
    """Serve from host memory. Only a file that lies on some nodes decides the node; else the scheduler does."""
    if request.file_nodes is None:
        return Placement(None, 0, f"on the CPU: {why}", judge)
    refusals = {name: node_refusal(fleet.nodes.get(name), request) for name in sorted(request.file_nodes)}
    good = [name for name, refusal in refusals.items() if refusal is None]
    if good:
        # Siblings go round the nodes: no ledger of host memory is kept that could tell which is emptier.
        node = good[len(request.siblings) % len(good)]
        return Placement(None, 0, f"on the CPU of {node}, which has the model file: {why}", judge, node)
    if not refusals:
        return Unplaceable(Reason.MODEL_NOT_FOUND, "the model file is on no node", judge)
    details = "; ".join(f"{name}: {refusal[1]}" for name, refusal in refusals.items() if refusal)
    return Unplaceable(Reason.NO_DEVICE, f"no node with the model file can be used: {details}", judge)


def _verbatim(request: Request, fleet: Fleet) -> Placement | Unplaceable:
    """Take the first named device that fits; never another one."""
    found = survey_of(request, fleet, named(request.devices, fleet))
    for number, ref in enumerate(request.devices, start=1):
        fitting = [part for part in found.of(Verdict.FITS) if names(ref, part.members[0].device)]
        if fitting:
            best, _ = choose(fitting, request, fleet)
            place_in_list = "" if len(request.devices) == 1 else f", alternative {number} of {len(request.devices)}"
            return _chosen(best, request, fleet, f"named in placement.devices{place_in_list}")
    if fleet.devices and not found.parts:
        wanted = " or ".join(describe(ref) for ref in request.devices)
        return Unplaceable(
            Reason.DEVICE_NOT_FOUND,
            f"placement.devices names {wanted}, but none of the {len(fleet.devices)} known GPUs is that; "
            "compare with `kubectl get gpus -o wide`",
            _verdicts(request, fleet),
        )
    return _unplaceable(request, fleet, found)


def _chosen(best: Member, request: Request, fleet: Fleet, why: str) -> Placement:
    device = best.device
    need = request.need_on(device)
    numbers = f"needs {human(need)} of {human(best.available)} left"
    verdicts = _verdicts(request, fleet, device.gpu)
    return Placement(device, need, f"{_tell(device)}: {why}; {numbers}", verdicts, device.node)


def _tell(device: Device) -> str:
    """Name a device for a person."""
    return f"{device.description or device.name} ({device.pci_id or device.uuid or device.name}) on {device.node}"


def _count(counts: Counter[Verdict]) -> str:
    """Give the verdicts in words: `0 of 3 devices fit: 2 NoRoom, 1 ModelTooBig`."""
    if not counts:
        return "no device is known"
    parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items(), key=lambda x: (-x[1], x[0])))
    return f"0 of {counts.total()} devices fit: {parts}"


def _unplaceable(request: Request, fleet: Fleet, found: Survey) -> Unplaceable:
    """Say why nothing fits, with numbers; only of the named devices where some are named."""
    judge = _verdicts(request, fleet)
    if not fleet.devices:
        return Unplaceable(Reason.NO_NODE_AGENT, "no node agent has reported a device yet", judge)
    meant = [part for part in found.parts if part.verdict is not Verdict.NOT_SELECTED]
    if not meant:
        which = f"{found.count().total()} {'named' if request.devices else 'known'} devices"
        why = _several(found.parts, without="placement.selector: ")
        return Unplaceable(Reason.NO_DEVICE, f"placement.selector excludes all {which}. {why}", judge)
    counts = found.count()
    del counts[Verdict.NOT_SELECTED]
    count = _count(counts).replace("devices fit", "named devices fit" if request.devices else "devices fit")
    for verdict in SHORT:
        nearest = found.nearest(verdict)
        if nearest is not None:
            message = f"{count}. Nearest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} short"
            return Unplaceable(Reason.WAITING_FOR_DEVICE, message, judge, nearest)
    nearest = found.nearest(Verdict.MODEL_TOO_BIG)
    if nearest is not None:
        message = f"{count}. The largest is {_tell(nearest.device)}: {nearest.detail}, {_missing(nearest)} too small"
        return Unplaceable(Reason.INSUFFICIENT_MEMORY, message, judge, nearest)
    if all(part.verdict is Verdict.MODEL_MISSING for part in meant):
        nodes = ", ".join(sorted({one.device.node for part in meant for one in part.members}))
        return Unplaceable(Reason.MODEL_NOT_FOUND, f"{count}. The model file is not on {nodes}", judge)
    return Unplaceable(Reason.NO_DEVICE, f"{count}. {_several(meant)}", judge)


def _several(parts: Iterable[Part], without: str = "") -> str:
    """Join what refuses devices, in the order of their names, as many as a message tells."""
    found = [f"{one.gpu}: {part.why.removeprefix(without)}" for part in parts for one in part.members]
    more = f"; and {len(found) - MOST_DETAILS} more" if len(found) > MOST_DETAILS else ""
    return "; ".join(nsmallest(MOST_DETAILS, found)) + more


def _missing(judged: Judged) -> str:
    return human(judged.shortfall, up=True)
