"""`paddock top`: the GPUs, who uses them, and how much is answered, again and again."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from paddock.cli.access import GPUS, JSON, Api, deployments_path
from paddock.cli.explain import if_allowed
from paddock.cli.output import Output
from paddock.cli.problem import ApiError
from paddock.cli.reading import Gpu, Model, gpus_of, model_of
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column
from paddock.cli.target import Session
from paddock.cli.words import clean, plural, size, size_of
from paddock.cli.words import model_of as short
from paddock.core.traffic import Counters, Look, counters, keep, rate

METRICS = "/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics"
PATIENCE = 3.0
"""Seconds that one server may take to answer: one that hangs must not hold the table up."""
AT_ONCE = 16
"""Servers that are asked together."""
CLEAR = "\x1b[H\x1b[2J"


@dataclass(slots=True)
class Watch:
    """What is remembered from one look to the next."""

    looks: dict[str, tuple[Look, ...]] = field(default_factory=dict)
    """Of each server, by its pod (namespace/name)."""
    keys: dict[str, str | None] = field(default_factory=dict)
    """API keys by deployment."""


@dataclass(frozen=True, slots=True)
class Server:
    """One replica on a device."""

    deployment: str
    pod: str
    gpu: str
    observed: int | None
    """Bytes that the driver shows for it."""
    rate: float | None
    counters: Counters | None


async def top(session: Session, interval: float, output: Output, *, once: bool) -> None:
    """Show the table, until interrupted or once: a rate needs two looks, so once takes an interval, too."""
    watch = Watch()
    await look(session.api, watch)
    first = True
    try:
        while True:
            await asyncio.sleep(interval)
            gpus, servers, problem = await look(session.api, watch)
            if output in (Output.JSON, Output.YAML):
                session.screen.data(to_dict(gpus, servers), output)
            else:
                _page(session.screen, gpus, servers, problem, first=first)
            first = False
            if once:
                return
    except asyncio.CancelledError:  # Ctrl-C is how one leaves it
        return


def _page(screen: Screen, gpus: Sequence[Gpu], servers: Sequence[Server], problem: str, *, first: bool) -> None:
    if screen.terminal:
        screen.raw(CLEAR)
    elif not first:
        screen.line()
    show(screen, gpus, servers, problem)


async def look(api: Api, watch: Watch) -> tuple[list[Gpu], list[Server], str]:
    """Look once: GPUs, servers, and why some servers could not be asked."""
    gpus = gpus_of(await api.list(GPUS))
    models = [model_of(one) for one in await if_allowed(api, deployments_path(None)) or ()]
    slots = asyncio.Semaphore(AT_ONCE)
    problems: list[str] = []

    async def ask(model: Model, pod: str) -> None:
        async with slots:
            problem = await _sample(api, watch, model, pod)
        if problem:
            problems.append(f"{model.namespace}/{pod}: {problem}")

    there = [(model, one.pod_name) for model in models for one in model.status.placements if one.proof is not None]
    await asyncio.gather(*(ask(model, pod) for model, pod in there))
    known = {f"{model.namespace}/{pod}" for model, pod in there}
    for gone in set(watch.looks) - known:
        del watch.looks[gone]
    return gpus, _servers(models, watch), min(problems, default="")


async def _sample(api: Api, watch: Watch, model: Model, pod: str) -> str:
    """Ask one server; gives why that did not work."""
    if model.key not in watch.keys:
        watch.keys[model.key] = await _key(api, model)
    key = watch.keys[model.key]
    path = METRICS.format(namespace=quote(model.namespace), pod=quote(pod))
    try:
        text = await api.fetch(path, {"X-Api-Key": key} if key else {}, PATIENCE)
    except ApiError as error:
        if error.forbidden:
            return "you may not ask servers through the API server (get pods/proxy)"
        return "it asks for a key that you may not read" if error.status == 401 else clean(error.message)  # noqa: PLR2004 HTTP
    found = counters(text)
    if found is None:
        return "it tells no metrics"
    name = f"{model.namespace}/{pod}"
    watch.looks[name] = keep(watch.looks.get(name, ()), Look(asyncio.get_running_loop().time(), found))
    return ""


async def _key(api: Api, model: Model) -> str | None:
    """Read the key that a deployment's servers ask for; None where there is none, or the user may not read it."""
    reference = model.spec.serving.api_key_secret_ref if model.spec else None
    if reference is None:
        return None
    try:
        secret = await api.get(f"/api/v1/namespaces/{quote(model.namespace)}/secrets/{quote(reference.name)}")
        return base64.b64decode(secret["data"][reference.key]).decode().strip()
    except (ApiError, LookupError, TypeError, ValueError):
        return None


def _servers(models: Sequence[Model], watch: Watch) -> list[Server]:
    out = []
    for model in models:
        for one in model.status.placements:
            looks = watch.looks.get(f"{model.namespace}/{one.pod_name}", ())
            last = looks[-1].counters if looks else None
            observed = one.proof.observed_bytes if one.proof else None
            gpu = one.devices[0].gpu if one.devices else ""
            out.append(Server(model.key, one.pod_name, gpu, observed, rate(looks), last))
    return out


# --- showing -------------------------------------------------------------------------------------------------------


def used(gpu: Gpu, servers: Sequence[Server]) -> int | None:
    """Give bytes in use: what the driver shows of processes, or else what the listing found to be taken."""
    memory = gpu.status.memory
    foreign = size_of(memory.foreign)
    if foreign is not None:
        return foreign + sum(one.observed or 0 for one in servers if one.gpu == gpu.name)
    total, free = size_of(memory.total), size_of(memory.free)
    return None if total is None or free is None else total - free


def show(screen: Screen, gpus: Sequence[Gpu], servers: Sequence[Server], problem: str = "") -> None:
    """Print one table."""
    columns = [
        Column("NODE", least=8),
        Column("DEVICE"),
        Column("DESCRIPTION", least=10, drop=2),
        Column("TOTAL", right=True, drop=1),
        Column("RESERVED", right=True),
        Column("USED", right=True),
        Column("FOREIGN", right=True, drop=3),
        Column("SERVERS", right=True),
        Column("TOKENS/S", right=True),
        Column("REQUESTS", right=True, drop=4),
        Column("WHO", least=12),
    ]
    screen.table(columns, [_row(screen, gpu, servers) for gpu in gpus])
    rates = [one.rate for one in servers if one.rate is not None]
    words = [plural(len(gpus), "GPU"), plural(len(servers), "server"), f"{sum(rates):.1f} tokens/s"]
    screen.line(", ".join(words) + (f"; not all could be asked: {problem}" if problem else ""))


def _row(screen: Screen, gpu: Gpu, servers: Sequence[Server]) -> list[Cell | str]:
    status, memory = gpu.status, gpu.status.memory
    mine = [one for one in servers if one.gpu == gpu.name]
    rates = [one.rate for one in mine if one.rate is not None]
    asked = [one.counters for one in mine if one.counters is not None]
    taken, foreign = used(gpu, servers), size_of(memory.foreign)
    reserved = size_of(memory.reserved)
    return [
        status.node,
        Cell(status.name, "bold" if gpu.ready else "red"),
        short(status.description) if screen.terminal else status.description,
        size(size_of(memory.total)),
        size(reserved) if reserved else "",
        size(taken) if taken is not None else "",
        Cell(size(foreign) if foreign else "", "yellow"),
        str(len(mine)) if mine else "",
        Cell(f"{sum(rates):.1f}" if rates else "", "green"),
        _requests(asked),
        Cell(_who(gpu, mine), "cyan"),
    ]


def _requests(asked: Sequence[Counters]) -> str:
    if not asked:
        return ""
    waiting = sum(one.waiting for one in asked)
    return str(sum(one.working for one in asked)) + (f"+{waiting}" if waiting else "")


def _who(gpu: Gpu, mine: Sequence[Server]) -> str:
    """Name the deployments and strangers, each with what it has."""
    sizes: dict[str, int | None] = {}
    for one in mine:
        before = sizes.get(one.deployment)
        sizes[one.deployment] = one.observed if before is None else before + (one.observed or 0)
    words = [name + (f" {size(taken)}" if taken else "") for name, taken in sorted(sizes.items())]
    words += [f"{one.command} {size(size_of(one.memory))}" for one in gpu.status.foreign_use]
    return ", ".join(words) if gpu.ready else ", ".join([f"not ready: {gpu.why_not}", *words])


def to_dict(gpus: Sequence[Gpu], servers: Sequence[Server]) -> JSON:
    """Give one look as plain values; sizes in bytes."""
    return {"gpus": [_gpu_dict(gpu, servers) for gpu in gpus], "servers": [_server_dict(one) for one in servers]}


def _gpu_dict(gpu: Gpu, servers: Sequence[Server]) -> Mapping[str, object]:
    memory = gpu.status.memory
    return {
        "gpu": gpu.name,
        "node": gpu.status.node,
        "ready": gpu.ready,
        "total": size_of(memory.total),
        "reserved": size_of(memory.reserved),
        "used": used(gpu, servers),
        "foreign": size_of(memory.foreign),
    }


def _server_dict(one: Server) -> Mapping[str, object]:
    return {
        "deployment": one.deployment,
        "pod": one.pod,
        "gpu": one.gpu or None,
        "observed": one.observed,
        "tokensPerSecond": None if one.rate is None else round(one.rate, 2),
        "requests": None if one.counters is None else one.counters.working,
        "waiting": None if one.counters is None else one.counters.waiting,
    }
