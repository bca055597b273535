"""Needs that were estimated before: many looks at a deployment, and many deployments of a model, ask the same."""

from collections.abc import Callable, Hashable
from functools import wraps
from hashlib import sha256
from typing import Concatenate, ParamSpec

from paddock.api.modeldeployment import ServingSpec
from paddock.api.report import HeaderSummary
from paddock.core import need as core
from paddock.core.need import MemoryNeed

MOST_KEPT = 256
P = ParamSpec("P")
Estimate = Callable[Concatenate[HeaderSummary, ServingSpec, P], MemoryNeed]


def kept(estimate: Estimate[P]) -> Estimate[P]:
    """Give the same function that remembers its last answers, by all that they follow from."""
    known: dict[Hashable, MemoryNeed] = {}

    @wraps(estimate)
    def ask(summary: HeaderSummary, serving: ServingSpec, /, *args: P.args, **kwargs: P.kwargs) -> MemoryNeed:
        # Their JSON is made in a hundredth of the time that an estimate takes.
        model = sha256(f"{summary.model_dump_json()} {serving.model_dump_json()}".encode()).digest()
        key = (model, args, tuple(sorted(kwargs.items())))
        found = known.pop(key, None) or estimate(summary, serving, *args, **kwargs)
        known[key] = found
        if len(known) > MOST_KEPT:
            del known[next(iter(known))]
        return found

    return ask


need = kept(core.need)
"""`core.need.need`, with a memory."""
