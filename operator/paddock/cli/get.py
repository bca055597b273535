"""`paddock get`: the ModelDeployments, each in a line."""

import re
from datetime import datetime

from paddock.api.modeldeployment import PlacedDevice
from paddock.api.vocabulary import ConditionType
from paddock.cli.access import GPUS, deployments_path, find
from paddock.cli.output import Output
from paddock.cli.problem import ApiError, Problem
from paddock.cli.reading import Gpu, Model, bare, gpus_of, listed, model_of
from paddock.cli.table import Cell, Column, Row
from paddock.cli.target import Session
from paddock.cli.words import age, size
from paddock.cli.words import model_of as short

_SENTENCE = re.compile(r" on \S+: (.+?)(?:; needs [^;]*)?$")


async def get(session: Session, name: str | None, *, everywhere: bool, output: Output) -> None:
    """Print one ModelDeployment, those of the namespace, or all."""
    if name is not None and everywhere:
        raise Problem("a NAME is looked for in one namespace; use -n NAMESPACE instead of -A", 2)
    if name is not None:
        objects = [await find(session.api, session.namespace, name)]
    else:
        objects = await session.api.list(deployments_path(None if everywhere else session.namespace))
    if output in (Output.JSON, Output.YAML):
        session.screen.data(listed(objects) if name is None else bare(objects[0]), output)
        return
    models = sorted((model_of(one) for one in objects), key=lambda one: one.key)
    if not models:
        where = "in any namespace" if everywhere else f"in namespace {session.namespace} (-A looks in all)"
        session.screen.line(f"No ModelDeployment {where}.")
        return
    names = await _descriptions(session)
    wide = output is Output.WIDE
    columns = [
        *([Column("NAMESPACE", least=9)] if everywhere else []),
        Column("NAME", least=8),
        Column("READY"),
        Column("GPU", least=7),
        Column("NODE", least=8, drop=2),
        Column("VERIFIED"),
        Column("AGE", right=True, drop=3),
        *([Column(title) for title in ("POLICY", "CONTEXT", "NEED", "SOURCE", "ENDPOINT")] if wide else []),
        Column("WHY", least=14, drop=1),
    ]
    rows = [_row(model, names, session.now(), everywhere=everywhere, wide=wide) for model in models]
    session.screen.table(columns, rows, whole=wide)


async def _descriptions(session: Session) -> dict[str, Gpu]:
    """Read the GPUs for their descriptions; who may not read them sees ggml's names."""
    try:
        return {gpu.name: gpu for gpu in gpus_of(await session.api.list(GPUS))}
    except ApiError:
        return {}


def _row(model: Model, gpus: dict[str, Gpu], now: datetime, *, everywhere: bool, wide: bool) -> Row:
    ready, wanted = model.status.ready_replicas or 0, model.wanted
    row: list[Cell | str] = [model.namespace] if everywhere else []
    row += [
        Cell(model.name, "bold"),
        Cell(f"{ready}/{wanted}", "green" if ready >= wanted else "yellow"),
        _devices(model, gpus),
        _more([one.node or "" for one in model.status.placements]),
        _verified(model),
        age(model.created, now),
    ]
    if wide:
        spec, need = model.spec, model.status.need
        row += [spec.placement.policy.value, model.context] if spec else ["", ""]
        row += [size(need.device_bytes or need.host_bytes) if need else ""]
        row += [spec.model.source if spec else "", model.status.endpoint or ""]
    return [*row, why(model)]


def _devices(model: Model, gpus: dict[str, Gpu]) -> str:
    placed = [_device(one.devices[0], gpus) if one.devices else "CPU" for one in model.status.placements]
    return _more(placed)


def _device(device: PlacedDevice, gpus: dict[str, Gpu]) -> str:
    known = gpus.get(device.gpu)
    description = short(known.status.description) if known and known.status.description else ""
    return f"{device.name} {description}".strip()


def _more(texts: list[str]) -> str:
    """Give the first of several, and how many more different ones there are."""
    several = list(dict.fromkeys(text for text in texts if text))
    if not several:
        return ""
    return several[0] + (f" +{len(several) - 1}" if several[1:] else "")


def _verified(model: Model) -> Cell:
    found = model.condition(ConditionType.VERIFIED)
    if found is None or not model.status.placements:
        return Cell("")
    if found.status == "True":
        return Cell("yes", "green")
    return Cell(f"no: {found.reason}", "bold red") if found.status == "False" else Cell("not yet", "yellow")


def why(model: Model) -> str:
    """Say in a few words why it is where it is, or why it is not available."""
    available = model.condition(ConditionType.AVAILABLE)
    if available is not None and available.status != "True":
        message = available.message.partition("; ")[2] or available.message
        return f"{available.reason}: {message}"
    if not model.status.placements:
        return "not looked at yet" if available is None else available.message
    return reason_of(model.status.placements[0].reason)


def reason_of(sentence: str) -> str:
    """Take the reason out of a recorded sentence: `WHERE on NODE: WHY; needs NUMBERS`."""
    found = _SENTENCE.search(sentence)
    return found.group(1) if found else sentence
