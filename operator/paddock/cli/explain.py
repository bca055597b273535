"""`paddock explain`: shows an explanation."""

from datetime import datetime

from rich.text import Text

from paddock.api.modeldeployment import Need, ReplicaPlacement
from paddock.api.vocabulary import REASONS, ConditionType, Label, Reason, Verdict
from paddock.cli.access import GPUS, JSON, POLICIES, Api, deployments_path, find
from paddock.cli.explanation import Explanation, Now, Seen, explain, ranked, to_dict
from paddock.cli.get import reason_of
from paddock.cli.headers import Files
from paddock.cli.output import Output
from paddock.cli.problem import ApiError, Problem
from paddock.cli.reading import Model, gpus_of, model_of, rules_of
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column, Row
from paddock.cli.target import Session
from paddock.cli.words import age, clean, size
from paddock.cli.words import model_of as short
from paddock.core.filters import Judged
from paddock.core.fleet import Device
from paddock.core.placement import Placement
from paddock.core.quantity import human, round_up

BAR = 24
"""Characters of the longest bar."""
LABEL = 11
STYLES = {Verdict.CHOSEN: "bold green", Verdict.FITS: "green", Verdict.NO_ROOM: "yellow"}
TRUTHS = {"True": ("yes", "green"), "False": ("no", "bold red"), "Unknown": ("not yet", "yellow")}


async def explained(
    session: Session, name: str, replica: int | None, output: Output, *, brief: bool, files: Files
) -> None:
    """Explain a deployment: a sentence, the proof, the need, and every GPU's verdict now; with its file, more."""
    model = model_of(await find(session.api, session.namespace, name))
    if replica is not None and replica >= model.wanted:
        raise Problem(f"{name} has no replica {replica}; it has {model.wanted}, counted from 0")
    header = files.of(name, model.spec.model) if model.spec is not None else None
    explanation = explain(model, Seen(None, None, None) if brief else await look(session.api), replica, header)
    if output in (Output.JSON, Output.YAML):
        session.screen.data(to_dict(explanation), output)
    elif brief:
        for sentence in explanation.sentences:
            session.screen.line(clean(sentence))
    else:
        show(session.screen, explanation, session.now())


async def look(api: Api) -> Seen:
    """Read what the user may read of GPUs, nodes and server pods."""
    gpus = await if_allowed(api, GPUS)
    nodes = await if_allowed(api, "/api/v1/nodes")
    pods = await if_allowed(api, "/api/v1/pods", {"labelSelector": f"{Label.COMPONENT}={Label.SERVER}"})
    ready = None if pods is None else frozenset(_key(pod) for pod in pods if _is_ready(pod))
    policies = await if_allowed(api, POLICIES)
    rules = None if policies is None else tuple(rules_of(policies))
    models = await if_allowed(api, deployments_path(None))
    known = None if models is None else [model_of(one) for one in models]
    return Seen(None if gpus is None else gpus_of(gpus), nodes, ready, rules, known)


async def if_allowed(api: Api, path: str, params: dict[str, str] | None = None) -> list[JSON] | None:
    """List objects; None where the user may not, or there is no such kind."""
    try:
        return await api.list(path, params)
    except ApiError as error:
        if error.forbidden or error.not_found:
            return None
        raise


def _key(pod: JSON) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _is_ready(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def show(screen: Screen, explanation: Explanation, now: datetime) -> None:
    """Print an explanation."""
    model = explanation.model
    for sentence in explanation.sentences:
        screen.line(Text(clean(sentence), style="bold"))
    screen.line()
    several = len(model.status.placements) > 1
    for placement in model.status.placements:
        _placement(screen, placement, now, several=several)
    if model.status.context is not None:
        _fact(screen, "Context", f"{model.context} tokens a request; kept until the spec changes")
    _conditions(screen, model)
    if model.status.queue is not None and model.spec is not None:
        _fact(screen, "Queue", f"place {model.status.queue.position} (priority {model.spec.priority}, then age)")
    if (last := model.status.last_disruption) is not None:
        _fact(screen, last.kind, f"{age(last.at, now)} ago from {last.gpu} for {last.by}: {last.message}")
    if model.status.need is not None:
        screen.line()
        _need(screen, model.status.need)
    screen.line()
    if explanation.now is not None:
        _now(screen, model, explanation.now)
    else:
        screen.line(_why_not_now(explanation))


def _why_not_now(explanation: Explanation) -> str:
    """Say why no GPU is judged."""
    model = explanation.model
    if model.wanted == 0:
        return "It asks for no GPU now, so none is judged."
    if not explanation.gpus:
        return "The GPUs are not shown: you may not list them; ask for the cluster role view."
    return "No GPU can be judged before the need is known."


def _fact(screen: Screen, label: str, value: str | Text) -> None:
    screen.line(clean(value) if isinstance(value, str) else value, Text(f"{label:<{LABEL}}", style="dim"))


def _placement(screen: Screen, placement: ReplicaPlacement, now: datetime, *, several: bool) -> None:
    label = f"Replica {placement.replica}" if several else "Placed"
    for device in placement.devices:
        ids = ", ".join(one for one in (device.pci_id, device.uuid) if one)
        names = f"{device.name} there, {device.name_in_pod} in its pod"
        _fact(screen, label, f"{device.backend} device {ids} of {placement.node} ({names})")
        _fact(screen, "Reserved", size(device.need_bytes))
    if not placement.devices:
        _fact(screen, label, f"on the CPU of {placement.node or 'a node that the scheduler picks'}")
    if placement.devices and placement.binding is not None:
        learned = "" if placement.binding.exact_device else "; which card it is was learned afterwards"
        _fact(screen, "Given by", f"{placement.binding.binder}: {placement.binding.reason}{learned}")
    _fact(screen, "When", f"{age(placement.since, now)} ago ({placement.since}), pod {placement.pod_name}")


def _conditions(screen: Screen, model: Model) -> None:
    """Print what is proven and what serves; of several failures with one reason only the first, and its remedy."""
    told: set[str] = set()
    for type_ in (ConditionType.ACCEPTED, ConditionType.PLACED, ConditionType.VERIFIED, ConditionType.AVAILABLE):
        found = model.condition(type_)
        quiet = type_ in (ConditionType.ACCEPTED, ConditionType.PLACED)
        if found is None or (quiet and found.status == "True"):
            continue
        word, style = TRUTHS[found.status]
        if found.status != "False":
            _fact(screen, type_.value, Text.assemble((word, style), f": {clean(found.message)}"))
            continue
        again = found.reason in told or (quiet and not model.status.placements)
        message = "" if again else f": {clean(found.message)}"
        _fact(screen, type_.value, Text.assemble((word, style), f" ({found.reason}){message}"))
        if found.reason in set(Reason) and found.reason not in told:
            _fact(screen, "To do", REASONS[Reason(found.reason)].remedy.replace("NAME", model.name))
        told.add(found.reason)


def _need(screen: Screen, need: Need) -> None:
    on_device = need.device_bytes > 0
    total = need.device_bytes if on_device else need.host_bytes
    where = "on the GPU" if on_device else "of host memory"
    text = f"Need of one replica: {size(total)} {where} ({need.source.lower()})"
    if on_device:
        text += f", {size(round_up(need.device_bytes))} reserved; {size(need.host_bytes)} of host memory beside it"
    screen.line(Text(text, style="bold"))
    parts = [
        ("weights", need.weights_bytes),
        ("KV cache", need.kv_cache_bytes),
        ("compute", need.compute_bytes),
        ("margin", need.margin_bytes),
    ]
    longest = max(1, *(value for _, value in parts))
    for name, value in parts:
        bar = "█" * max(1, round(BAR * value / longest)) if screen.terminal and value else ""
        screen.line(Text.assemble(f"  {name:<{LABEL}}{size(value):>9}", ("  " + bar if bar else "", "blue")))


def _now(screen: Screen, model: Model, now: Now) -> None:
    """Print every GPU's verdict now; a placed replica is judged as if it held nothing."""
    if not now.judged:
        answer = now.answer.reason if isinstance(now.answer, Placement) else now.answer.message
        screen.line(Text.assemble(("Asked now", "bold"), f": {clean(answer)}."))
        return
    what = f"{size(now.need)} for replica {now.replica}" if model.wanted > 1 else size(now.need)
    about = f", as if {model.name} held nothing" if now.held else ""
    screen.line(Text.assemble(("Every GPU as it is now", "bold"), f", asked for {what}{about}:"))
    lacking = any(one.shortfall for one in now.judged)
    columns = [
        Column("VERDICT"),
        Column("NODE", least=8),
        Column("DEVICE"),
        Column("DESCRIPTION", least=12, drop=1),
        Column("LEFT", right=True),
        *([Column("SHORT", right=True)] if lacking else []),
        Column("WHY", least=22, wrap=True),
    ]
    screen.table(columns, [_row(screen, now, one, lacking=lacking) for one in ranked(now.judged)])
    _difference(screen, now)
    _holders(screen, now)
    if now.helps:
        screen.line()
        screen.line(Text("What would help", style="bold"))
        for one in now.helps:
            screen.line(f"  {clean(one)}")
    if now.otherwise:
        screen.line()
        screen.line(Text("With another policy", style="bold"))
        for one in now.otherwise:
            screen.line(f"  {clean(one)}")
    if now.assumptions:
        screen.line()
        screen.line(Text(f"Taken for granted: {'; '.join(now.assumptions)}.", style="dim"))


def _row(screen: Screen, now: Now, one: Judged, *, lacking: bool) -> Row:
    device = one.device
    description = short(device.description) if screen.terminal else device.description
    row: list[Cell | str] = [
        Cell(one.verdict.value, STYLES.get(one.verdict, "dim")),
        device.node,
        device.name,
        description,
        size(one.available),
    ]
    if lacking:
        row.append(human(one.shortfall, up=True) if one.shortfall else "")
    return [*row, _why(now, one)]


def _why(now: Now, one: Judged) -> str:
    """Say in a few words what the numbers beside it do not."""
    held = "; it is there" if one.device.gpu == now.held else ""
    if one.verdict is Verdict.CHOSEN and isinstance(now.answer, Placement):
        return reason_of(now.answer.reason) + held
    if one.verdict is Verdict.FITS:
        return "would do, another ranks higher" + held
    if one.verdict is Verdict.MODEL_TOO_BIG:
        return f"has {size(one.device.total)} even when empty" + held
    if one.verdict is Verdict.NO_ROOM:
        return "others hold the memory" + held
    return one.detail + held


def _difference(screen: Screen, now: Now) -> None:
    """Say so where a decision of now would differ from the one that was taken."""
    if now.held is None:
        return
    answer = now.answer
    if not isinstance(answer, Placement):
        screen.line(f"Asked now, no GPU would be found; what runs is not moved: {clean(answer.message)}")
    elif answer.device is None or answer.device.gpu != now.held:
        screen.line(f"Asked now, it would go elsewhere; what runs is not moved: {clean(answer.reason)}")


def _holders(screen: Screen, now: Now) -> None:
    """For a replica that waits: who holds the memory that it lacks."""
    short_of = [one for one in now.judged if one.verdict is Verdict.NO_ROOM]
    if now.held is not None or not short_of:
        return
    screen.line()
    screen.line(Text("Who holds the memory", style="bold"))
    devices = {one.device.gpu: one.device for one in short_of}
    rows = [
        [_name(devices[one.gpu]), one.deployment or "not placed by Paddock", size(one.bytes)]
        for one in now.holders
        if one.gpu in devices
    ]
    screen.table([Column("GPU", least=12), Column("HELD BY", least=12), Column("MEMORY", right=True)], rows)


def _name(device: Device) -> str:
    return f"{device.node} {device.name}"
