"""Fleets and workloads in files: Kubernetes objects as kubectl prints them, short lists of cards, and CSV or YAML."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from paddock.api.base import Model, in_words
from paddock.api.gpu import DeviceType, GPUSpec, GPUStatus, Memory
from paddock.api.modeldeployment import Condition, Policy
from paddock.api.selector import DeviceSelector, Preference
from paddock.api.vocabulary import GRANULE, ConditionType, Reason
from paddock.cli.problem import Problem
from paddock.cli.reading import Gpu, gpus_of, rules_of
from paddock.core.quantity import parse_quantity, round_up
from paddock.core.request import Request
from paddock.core.simulate import Job, Outage

JSON = dict[str, Any]
GB = 10**9


class Card(Model):
    """Some equal cards that need not exist."""

    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    memory: str
    """Quantity, for example 24Gi."""
    bandwidth: Annotated[float, Field(gt=0)] | None = None
    """Of its memory, in GB per second."""
    name: str = "NVIDIA GPU"
    node: str = "new"
    backend: str = "CUDA"
    compute_capability: str | None = None
    labels: dict[str, str] = {}  # noqa: RUF012 pydantic copies it


class Row(Model):
    """One line of a workload."""

    name: str | None = None
    namespace: str = "default"
    arrival: Annotated[int, Field(ge=0)] = 0
    departure: int | None = None
    memory: str
    """Need of one replica on the GPU, as a quantity."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    priority: int = 0
    policy: Policy = Policy.AUTO
    min_tokens_per_second: int | None = None
    value: Annotated[int, Field(ge=0)] | None = None
    """What a second of a replica is worth, in any unit; by default its memory, doubled for each lower priority that
    the workload has."""
    read: str | None = None
    """What a token reads, as a quantity; by default the memory."""
    selector: DeviceSelector | None = None
    preferences: list[Preference] = []  # noqa: RUF012 pydantic copies it


class Broken(Model):
    """A GPU that is gone for a while."""

    gpu: str
    start: int
    end: int | None = None


def objects_of(paths: Iterable[Path]) -> list[JSON]:
    """Read files of objects and of short lists; gives the objects. Raises Problem."""
    found: list[JSON] = []
    for path in paths:
        for document in _documents(path):
            if "gpus" in document and "kind" not in document:
                found += _cards(document["gpus"], path)
            elif document.get("kind", "").endswith("List"):
                found += document.get("items") or []
            else:
                found.append(document)
    return found


def gpus_in(objects: Sequence[JSON]) -> list[Gpu]:
    """Give the GPUs among the objects."""
    return gpus_of(one for one in objects if one.get("kind") == "GPU")


def nodes_in(objects: Sequence[JSON]) -> list[JSON] | None:
    """Give the Node objects; None when there is none, and every node is taken to be Ready."""
    return [one for one in objects if one.get("kind") == "Node"] or None


def workload_of(path: Path, objects: Sequence[JSON]) -> tuple[list[Job], list[Outage]]:
    """Read a workload: CSV, or YAML with `models` and `outages`; the rules of the objects hold. Raises Problem."""
    outages: list[JSON] = []
    if path.suffix == ".csv":
        rows: list[JSON] = [
            {key: value for key, value in one.items() if key and value} for one in csv.DictReader(_lines(path))
        ]
    else:
        rows = [row for document in _documents(path) for row in document.get("models") or ()]
        outages = [one for document in _documents(path) for one in document.get("outages") or ()]
    rules = rules_of(one for one in objects if one.get("kind") == "PlacementPolicy")
    jobs: list[Job] = []
    try:
        read = [Row.model_validate(row) for row in rows]
        ranks = {priority: rank for rank, priority in enumerate(sorted({row.priority for row in read}))}
        for number, row in enumerate(read, start=1):
            jobs += _jobs(row, number, rules, ranks[row.priority])
        broken = [Broken.model_validate(one) for one in outages]
    except (ValidationError, ValueError) as error:
        raise Problem(f"{path}: {_first(error)}") from error
    return jobs, [Outage(one.gpu, one.start, one.end) for one in broken]


def _jobs(row: Row, number: int, rules: Sequence[Any], rank: int) -> list[Job]:
    from paddock.core.rules import default_policy, rules_for  # noqa: PLC0415 start-up time

    need = round_up(int(parse_quantity(row.memory)))
    read = int(parse_quantity(row.read)) if row.read is not None else need
    mine = rules_for(row.namespace, rules)
    automatic = row.policy is Policy.AUTO and row.min_tokens_per_second is None
    base = f"{row.namespace}/{row.name or f'model-{number}'}"
    pods = [f"{base}-{one}" for one in range(row.replicas)]
    request = Request(
        need=need,
        policy=(default_policy(mine) or row.policy) if automatic else row.policy,
        selector=row.selector,
        preferences=tuple(row.preferences),
        min_tokens_per_second=row.min_tokens_per_second,
        token_bytes=read,
        priority=row.priority,
        rules=mine,
        siblings=frozenset(pods),
        seed=base,
    )
    value = row.value if row.value is not None else need // GRANULE * 2**rank
    return [Job(pod, row.arrival, request, row.departure, value) for pod in pods]


def _cards(entries: Any, path: Path) -> list[JSON]:
    try:
        cards = [Card.model_validate(one) for one in entries or ()]
        return [_object(card, kind, number) for kind, card in enumerate(cards) for number in range(card.count)]
    except (ValidationError, ValueError) as error:
        raise Problem(f"{path}: {_first(error)}") from error


def _object(card: Card, kind: int, number: int) -> JSON:
    """Give a GPU object of a card."""
    name = f"{card.node}-{kind}-{number}"
    ready = Condition(
        type=ConditionType.READY,
        status="True",
        reason=Reason.LISTED,
        message="from a file",
        last_transition_time="1970-01-01T00:00:00Z",
    )
    status = GPUStatus(
        node=card.node,
        index=number,
        raw_index=number,
        uuid=f"GPU-{name}",
        name=f"{card.backend}{number}",
        description=card.name,
        backends=[card.backend],
        type=DeviceType.DISCRETE,
        memory=Memory(total=f"{int(parse_quantity(card.memory))}"),
        compute_capability=card.compute_capability,
        memory_bandwidth=int(card.bandwidth * GB) if card.bandwidth is not None else None,
        conditions=[ready],
    )
    return {
        "kind": "GPU",
        "metadata": {"name": name},
        "spec": GPUSpec(labels=card.labels).to_dict(),
        "status": status.to_dict(),
    }


def _documents(path: Path) -> list[JSON]:
    try:
        found = [one for one in yaml.safe_load_all("".join(_lines(path))) if one is not None]
    except yaml.YAMLError as error:
        raise Problem(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not all(isinstance(one, dict) for one in found):
        raise Problem(f"{path} holds something else than objects")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read {path}: {error}") from error


def _first(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        one = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in one['loc'])}: {in_words(one['msg'])}"
    return str(error)
