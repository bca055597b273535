"""The files that `plan` and `explain` are given: a model's, and those that are served beside it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from paddock.api.report import HeaderSummary
from paddock.api.source import CompanionKind, ModelSpec
from paddock.cli.model import read_header, read_model
from paddock.cli.problem import Problem
from paddock.core.companions import ALONE, NAMES, Group, misfit
from paddock.core.gguf import GgufError
from paddock.core.header import summary_of

_OPTIONS: dict[CompanionKind, str] = {"Projector": "--mmproj", "Adapter": "--lora", "Draft": "--draft"}


@dataclass(frozen=True)
class Headers:
    """What the files of one model say."""

    model: HeaderSummary
    beside: Group = ALONE


@dataclass(frozen=True)
class Files:
    """The files as the command line names them, or their addresses; each is read once, when it is needed."""

    model: str | None = None
    projector: str | None = None
    adapters: Sequence[str] = ()
    draft: str | None = None

    def of(self, name: str, spec: ModelSpec) -> Headers | None:
        """Give the headers of a deployment's files; None where no file is given. Raises Problem."""
        given = Counter(kind for kind, _ in self._named)
        if self.model is None:
            if given:
                raise Problem(f"{_OPTIONS[min(given)]} is said of what is beside a model: give --gguf, too", 2)
            return None
        wanted = Counter[CompanionKind]({"Adapter": len(spec.lora_adapters)})
        wanted.update({"Projector": int(spec.projector is not None), "Draft": int(spec.draft is not None)})
        for kind, option in _OPTIONS.items():
            if wanted[kind] != given[kind]:
                raise Problem(f"{name} is served with {wanted[kind]} x {NAMES[kind]}: give {option} as often", 2)
        for (kind, file), (_, summary) in zip(self._named, self._read.beside.files, strict=True):
            if problem := misfit(kind, summary, self._read.model):
                raise Problem(f"{file}: {problem}")
        return self._read

    @property
    def _named(self) -> list[tuple[CompanionKind, str]]:
        named: list[tuple[CompanionKind, str | None]] = [("Projector", self.projector)]
        named += [("Adapter", one) for one in self.adapters]
        named.append(("Draft", self.draft))
        return [(kind, file) for kind, file in named if file is not None]

    @cached_property
    def _read(self) -> Headers:
        assert self.model is not None  # noqa: S101 the caller looked
        beside = tuple((kind, _summary(kind, file)) for kind, file in self._named)
        return Headers(read_model(self.model).summary, Group(beside))


def _summary(kind: CompanionKind, file: str) -> HeaderSummary:
    if kind == "Draft":
        return read_model(file).summary
    try:
        return summary_of([read_header(file)])
    except GgufError as error:
        raise Problem(f"{file}: {error}") from error
