"""Files that serve beside a model: projector, adapters, draft model. Whether they fit it, and what they need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Final

from typing_extensions import override

from paddock.api.fetched import Origin
from paddock.api.report import CompanionSummary, HeaderSummary
from paddock.api.source import Companion, CompanionKind, LoraAdapter, ModelSpec
from paddock.core.beside import DRAFTED, draft, encoders, whole_adapter
from paddock.core.estimate import Addend, Options
from paddock.core.geometry import Geometry
from paddock.core.source import ModelRoot, RemoteSource, Source, parse_any
from paddock.core.summary import INPUT_PREFIXES

NAMES: Final[dict[CompanionKind, str]] = {"Projector": "projector", "Adapter": "adapter", "Draft": "draft model"}
HOLDS: Final[dict[CompanionKind, str]] = {"Projector": "a projector", "Adapter": "an adapter", "Draft": "a model"}
"""What a file is that is no model but serves beside one."""
_OTHER_DRAFTS: Final = ("eagle3", "dflash", "dspark")
"""Architectures that draft by another way than a model of its own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A companion as the spec asks for it."""

    kind: CompanionKind
    spec: Companion
    source: Source | RemoteSource
    number: int = 0
    """Position among the adapters."""

    @property
    def title(self) -> str:
        """For people: projector, adapter, adapter 2, draft model."""
        return NAMES[self.kind] + (f" {self.number + 1}" if self.number else "")

    @property
    def scale(self) -> float:
        """How strongly an adapter is applied."""
        return self.spec.scale if isinstance(self.spec, LoraAdapter) else 1.0


@dataclass(frozen=True, slots=True)
class Present:
    """A companion whose header was read."""

    wanted: Wanted
    summary: HeaderSummary
    origin: Origin | None = None
    """Of what is fetched."""


@dataclass(frozen=True)
class Group:
    """All that a replica holds beside its model, as far as memory is concerned."""

    files: tuple[tuple[CompanionKind, HeaderSummary], ...] = ()

    @cached_property
    def digest(self) -> str:
        """Tell groups apart."""
        told = (f"{kind} {summary.model_dump_json()}" for kind, summary in self.files)
        return sha256("\n".join(told).encode()).hexdigest()

    @override
    def __hash__(self) -> int:
        """Summaries hold lists, so their text is hashed."""
        return hash(self.digest)

    @property
    def drafts(self) -> int:
        """Tokens that are drafted at once."""
        return DRAFTED if any(kind == "Draft" for kind, _ in self.files) else 0

    def addends(self, summary: HeaderSummary, options: Options) -> list[Addend]:
        """Give what they need beside a model that is whole on a device or on the CPU. Their names say whose it is."""
        found: list[Addend] = []
        adapters = sum(kind == "Adapter" for kind, _ in self.files)
        number = 0
        for kind, one in self.files:
            if kind == "Draft":
                found += draft(one, options, Geometry.of(summary, options))
            elif one.companion is not None and kind == "Projector":
                found += encoders(one.companion, options)
            elif one.companion is not None:
                number += 1
                found += whole_adapter(one.companion, "adapter" if adapters == 1 else f"adapter {number}", options)
        return found

    @property
    def mapped(self) -> int:
        """Weights on a device that llama-server's log counts with the model's: those of the draft model."""
        drafts = [one for kind, one in self.files if kind == "Draft"]
        return sum(one.layer_tensors.bytes + one.output_tensors.bytes for one in drafts)


ALONE: Final = Group()


def wanted_of(model: ModelSpec, roots: Sequence[ModelRoot]) -> tuple[Wanted, ...] | str:
    """Give the companions that a spec asks for, or why one is refused."""
    asked: list[tuple[CompanionKind, int, Companion]] = []
    if model.projector is not None:
        asked.append(("Projector", 0, model.projector))
    asked += [("Adapter", number, one) for number, one in enumerate(model.lora_adapters)]
    if model.draft is not None:
        asked.append(("Draft", 0, model.draft))
    found = []
    for kind, number, one in asked:
        source = parse_any(one.source, roots)
        if isinstance(source, str):
            return f"{NAMES[kind]}: {source}"
        # llama-server takes adapters in one argument, PATH:SCALE,PATH:SCALE
        if kind == "Adapter" and not isinstance(source, RemoteSource) and set(source.path) & {",", ":"}:
            return f"adapter: the path {source.path} must hold neither , nor :"
        found.append(Wanted(kind, one, source, number))
    return tuple(found)


def misfit(kind: CompanionKind, summary: HeaderSummary, model: HeaderSummary) -> str | None:
    """Say why a file cannot serve beside a model as this companion; None where nothing is known against it."""
    companion = summary.companion
    if kind == "Draft":
        if companion is not None:
            return f"the file is {HOLDS[companion.kind]}, no model"
        if summary.architecture in _OTHER_DRAFTS:
            return f"the file is no model of its own but a part of another ({summary.architecture})"
        return None
    if companion is None or companion.kind != kind:
        other = HOLDS[companion.kind] if companion is not None else "a model"
        return f"the file is {other}, no {NAMES[kind]}"
    if kind == "Adapter":
        return _misfit(companion, summary.architecture, model)
    return None


def _misfit(adapter: CompanionSummary, architecture: str, model: HeaderSummary) -> str | None:
    """Compare what an adapter changes with what the model has, as llama.cpp does (src/llama-adapter.cpp)."""
    if architecture != model.architecture:
        return f"it is of the architecture {architecture}, the model of {model.architecture}"
    graph = model.graph
    if graph is None:
        return None
    for name, shapes in adapter.adapts.items():
        bare = name.removesuffix(".weight")
        there = [graph.shapes[bare]] if bare in graph.shapes else []
        there += [kind.shapes[bare] for kind in graph.kinds if bare in kind.shapes]
        if not there:
            return f"it is for another model: this one has no {name}"
        # an adapted embedding is looked up, not multiplied with: there a and b have other sides
        for shape in () if name.startswith(INPUT_PREFIXES) else shapes:
            if all(shape != one[:2] for one in there):
                told = " x ".join(map(str, there[0]))
                return f"it is for another model: it changes a {name} of {shape[0]} x {shape[1]}, this one's is {told}"
    return None


def group_of(present: Sequence[Present]) -> Group:
    """Give the same without where it comes from."""
    return Group(tuple((one.wanted.kind, one.summary) for one in present))


def with_drafts(options: Options, group: Group) -> Options:
    """Give the server's options beside these companions: with a draft, more answers are computed at once."""
    return replace(options, drafted=group.drafts) if group.drafts else options
