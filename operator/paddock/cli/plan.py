"""`paddock plan`: where ModelDeployments of files would go, one after the other; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paddock.api.context import ContextChoice
from paddock.api.modeldeployment import Need, ServingSpec
from paddock.cli.access import GPUS, POLICIES, Api, deployments_path
from paddock.cli.explain import if_allowed, look
from paddock.cli.explanation import Seen, fleet_of, tenants_of
from paddock.cli.fleetfile import gpus_in, nodes_in, objects_of
from paddock.cli.get import reason_of
from paddock.cli.headers import Files, Headers
from paddock.cli.output import Output
from paddock.cli.problem import Problem
from paddock.cli.reading import Model, bare, model_of, rules_of
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column
from paddock.cli.target import Session
from paddock.core.context import largest, largest_on_cpu, told, wish_of
from paddock.core.fleet import Claim, Fleet
from paddock.core.need import need
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.pod import CONTEXT_CHECKPOINTS, model_memory
from paddock.core.quantity import parse_quantity, round_up
from paddock.core.request import Request, request_of
from paddock.core.rules import Rule, priority_problem, rules_for
from paddock.core.smaller import resized, smaller
from paddock.core.whatif import other_policies, what_ifs

JSON = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """The answer for one replica."""

    model: Model
    replica: int
    answer: Placement | Unplaceable
    helps: tuple[str, ...] = ()
    """What would have to be otherwise, and the GPU that it would then get."""
    otherwise: tuple[str, ...] = ()
    """Where it has a place: other policies, and the GPU that it would go to with them."""


@dataclass(frozen=True)
class Given:
    """What the command line says of the need."""

    need: str | None
    """A quantity."""
    files: Files
    """The model's GGUF file, and those beside it."""


Place = tuple[Placement, Fleet]
"""Where a replica would go, and the fleet that was looked at."""


class Grown(NamedTuple):
    """A model whose context was chosen."""

    model: Model
    request: Request
    answer: Placement


async def export(session: Session, output: Output) -> None:
    """Print GPUs, nodes, PlacementPolicies and ModelDeployments as one List, for --fleet."""
    objects = await live(session.api)
    objects += [
        {**one, "kind": "ModelDeployment"} for one in await if_allowed(session.api, deployments_path(None)) or ()
    ]
    items = [bare(one) for one in objects]
    session.screen.data({"apiVersion": "v1", "kind": "List", "items": items}, output)


async def live(api: Api) -> list[JSON]:
    """Read what a fleet is made of, as far as the user may; the GPUs are a must."""
    kinds = [("GPU", await api.list(GPUS)), ("Node", await if_allowed(api, "/api/v1/nodes"))]
    kinds.append(("PlacementPolicy", await if_allowed(api, POLICIES)))
    return [{**one, "kind": kind} for kind, objects in kinds for one in objects or ()]


async def plan_live(session: Session, files: Sequence[Path], given: Given, output: Output) -> None:
    """Plan against the cluster as it is now."""
    seen = await look(session.api)
    if seen.gpus is None:
        raise Problem("you may not list GPUs; ask for the cluster role view, or use --fleet")
    _show(session.screen, _planned(files, seen, given, session.namespace), output)


def plan_saved(screen: Screen, files: Sequence[Path], fleets: Sequence[Path], given: Given, output: Output) -> None:
    """Plan against saved fleets."""
    objects = objects_of(fleets)
    rules = tuple(rules_of(one for one in objects if one.get("kind") == "PlacementPolicy"))
    models = [model_of(one) for one in objects if one.get("kind") == "ModelDeployment"]
    seen = Seen(gpus_in(objects), nodes_in(objects), None, rules, models)
    _show(screen, _planned(files, seen, given, "default"), output)


def _planned(files: Sequence[Path], seen: Seen, given: Given, namespace: str) -> list[Planned]:
    bodies = [one for one in objects_of(files) if one.get("kind") == "ModelDeployment"]
    if not bodies:
        raise Problem("the files hold no ModelDeployment")
    models = [model_of({**one, "metadata": {"namespace": namespace, **one["metadata"]}}) for one in bodies]
    fleet, _ = fleet_of(seen, None, namespace)
    out: list[Planned] = []
    for model in sorted(models, key=lambda one: -(one.spec.priority if one.spec is not None else 0)):
        if model.spec is None:
            raise Problem(f"the spec of {model.name} cannot be read")
        found, fleet = _place_all(model, given, fleet, seen)
        out += found
    return out


def _need_of(model: Model, need: str | None) -> Need:
    """Give what one replica needs: as said, else as the operator wrote it into the object; raises Problem."""
    try:
        size = round_up(int(parse_quantity(need))) if need is not None else None
    except ValueError as error:
        raise Problem(f"--need: {error}") from error
    if size is None and model.status.need is not None:
        return model.status.need
    if size is None:
        raise Problem(f"the need of {model.name} is not known: give --need or --gguf, or the object with its status")
    parts = dict.fromkeys(("host_bytes", "kv_cache_bytes", "compute_bytes", "margin_bytes"), 0)
    return Need(device_bytes=size, weights_bytes=size, bytes_per_token=size, source="Given", **parts)


def _asked(model: Model, given: Given, headers: Headers | None, fleet: Fleet, rules: tuple[Rule, ...]) -> Request:
    """Give what one replica asks for: by the file where one is given, else by --need or the object's status."""
    spec = model.spec
    assert spec is not None  # noqa: S101 the caller looked
    if headers is not None and given.need is None:
        backends = dict.fromkeys((device.backend for device in fleet.devices), 0)
        kept = {} if model.status.context is None else {"context_length": model.status.context.length}
        serving = spec.serving.model_copy(update=kept if model.is_open else {})
        base = replace(request_of(spec, 0, 0, 0, rules), needs=backends)
        return resized(base, headers.model, serving, headers.beside)
    need = _need_of(model, given.need)
    base = request_of(spec, round_up(need.device_bytes), need.host_bytes, need.bytes_per_token or 0, rules)
    return replace(base, needs=need.by_backend or {})


def _host_bytes(headers: Headers, serving: ServingSpec, context: int) -> int:
    """Give the host memory of one replica on the CPU."""
    beside, kept = headers.beside, CONTEXT_CHECKPOINTS
    return need(headers.model, serving, gpu=False, checkpoints=kept, context=context, beside=beside).host_bytes


def _grown(model: Model, base: Request, headers: Headers, pods: Sequence[str], first: Place) -> Grown:
    """Give the context that the operator would choose once the first replica has a place, and what follows from it."""
    answer, fleet = first
    spec = model.spec
    assert spec is not None  # noqa: S101 the caller looked
    wish = wish_of(spec.serving, headers.model.context_train)

    def ask(tokens: int) -> Request:
        serving = spec.serving.model_copy(update={"context_length": tokens})
        return resized(base, headers.model, serving, headers.beside)

    if answer.device is None:
        tokens = largest_on_cpu(wish, model_memory(spec), partial(_host_bytes, headers, spec.serving))
    else:
        tokens = largest(wish, ask, answer.device, pods, fleet)
    request = ask(tokens)
    need = request.need_on(answer.device) if answer.device is not None else 0
    choice = ContextChoice(length=tokens, spec="")
    known = replace(model, status=model.status.model_copy(update={"context": choice}))
    return Grown(known, request, told(answer, need, tokens, fleet))


def _place_all(model: Model, given: Given, fleet: Fleet, seen: Seen) -> tuple[list[Planned], Fleet]:
    spec = model.spec
    assert spec is not None  # noqa: S101 the caller looked
    rules = rules_for(model.namespace, seen.rules or ())
    headers = given.files.of(model.name, spec.model)
    base = _asked(model, given, headers, fleet, rules)
    pods = [f"{model.key}-planned-{number}" for number in range(model.wanted)]
    out: list[Planned] = []
    is_open = model.is_open and model.status.context is None and given.need is None
    for number, pod in enumerate(pods):
        request = replace(base, siblings=frozenset(pods), seed=f"{model.uid} {number}")
        answer = place(request, fleet)
        if is_open and isinstance(answer, Placement) and headers is not None:
            is_open = False
            model, base, answer = _grown(model, request, headers, pods[number:], (answer, fleet))
            request = base
        helps: tuple[str, ...] = ()
        otherwise: tuple[str, ...] = ()
        if isinstance(answer, Unplaceable):
            found = [*what_ifs(request, fleet, answer, tenants_of(seen, fleet), model.key)]
            if headers is not None:
                found += smaller(request, fleet, headers.model, spec.serving, headers.beside)
            helps = tuple(f"{one.change}: {one.gpu}" for one in found)
            if too_high := priority_problem(spec.priority, rules):
                helps = (too_high, *helps)
        elif answer.device is not None:
            otherwise = tuple(f"{one.change}: {one.gpu}" for one in other_policies(request, fleet, answer))
            claim = Claim(pod, model.key, answer.need, host_bytes=request.host_need)
            fleet = fleet.with_claim(answer.device.gpu, claim)
        out.append(Planned(model, number, answer, helps, otherwise))
    return out, fleet


def _show(screen: Screen, planned: Sequence[Planned], output: Output) -> None:
    if output in (Output.JSON, Output.YAML):
        screen.data([_to_dict(one) for one in planned], output)
        return
    chosen = any(one.model.is_open for one in planned)
    columns = [
        Column("NAME", least=8),
        Column("REPLICA", right=True),
        *([Column("CONTEXT")] if chosen else []),
        Column("NODE", least=8),
        Column("GPU", least=12),
        Column("WHY", least=22, wrap=True),
    ]
    screen.table(columns, [_row(one, chosen=chosen) for one in planned])
    for one in planned:
        for text in one.helps:
            screen.line(f"{one.model.name} would get a GPU {text}")
        for text in one.otherwise:
            screen.line(f"{one.model.name} would go elsewhere {text}")


def _row(one: Planned, *, chosen: bool) -> list[Cell | str]:
    answer = one.answer
    head: list[Cell | str] = [Cell(one.model.name, "bold"), str(one.replica)]
    head += [one.model.context] if chosen else []
    if isinstance(answer, Unplaceable):
        return [*head, "", Cell("none", "yellow"), f"{answer.reason}: {answer.message}"]
    return [*head, answer.node or "", answer.device.gpu if answer.device else "CPU", reason_of(answer.reason)]


def _to_dict(one: Planned) -> JSON:
    answer = one.answer
    placed = isinstance(answer, Placement)
    return {
        "name": one.model.name,
        "namespace": one.model.namespace,
        "replica": one.replica,
        "context": one.model.context,
        "placed": placed,
        "gpu": answer.device.gpu if isinstance(answer, Placement) and answer.device is not None else None,
        "node": answer.node if isinstance(answer, Placement) else None,
        "answer": answer.reason if isinstance(answer, Placement) else answer.message,
        "devices": [
            {"gpu": each.device.gpu, "verdict": each.verdict.value, "detail": each.detail} for each in answer.judged
        ],
        "otherPolicies": list(one.otherwise),
        "wouldHelp": list(one.helps),
    }
