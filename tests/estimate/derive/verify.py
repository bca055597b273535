"""Leaves out of the templates what does not agree with llama.cpp on models that nothing was derived from."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from estimate import table
from paddock.api.report import HeaderSummary
from paddock.core.estimate import device_layers, layout
from paddock.core.geometry import Geometry, Options
from paddock.core.graphs import ComputeSizes, Templates, compute_sizes, graph_class
from paddock.core.offload import flash_stays, scheduled_sizes
from paddock.core.outline import model_key

WITHIN = 0.01

Checks = dict[tuple[str, str], dict[str, list[bool]]]
Answer = Callable[[HeaderSummary, Options, Templates], tuple[str, ComputeSizes | None] | None]
"""The class of graph and the sizes; None where a form of templates has nothing to say."""
Met = set[tuple[str, str, str]]
"""Architecture, model and option set."""


def by_steps(summary: HeaderSummary, options: Options, templates: Templates) -> tuple[str, ComputeSizes | None] | None:
    """Replay the allocator's steps, which are of graphs that are whole on the device."""
    if options.gpu_layers is not None or options.cpu_moe:
        return None
    sizes = compute_sizes(summary, options, Geometry.of(summary, options), templates)
    return graph_class(summary, options), sizes


def by_operations(
    summary: HeaderSummary, options: Options, templates: Templates
) -> tuple[str, ComputeSizes | None] | None:
    """Replay the scheduler over all operations; another class for what is on both sides."""
    places = layout(summary, options, device_layers(summary, options))
    geometry = Geometry.of(summary, options)
    asked = places.mixed and options.flash_attention == "auto" and not options.quantized
    if asked and not flash_stays(summary, options, templates, places):
        options = replace(options, flash_attention="given up")
    sizes = scheduled_sizes(summary, options, geometry, templates, places)
    return graph_class(summary, options) + ("/" if places.mixed else ""), sizes


class Check(NamedTuple):
    """A measured model with an option set, and whether the templates say the same."""

    summary: HeaderSummary
    name: str
    options: str
    graph: str
    good: bool


def compared(templates: Templates, answer: Answer) -> Iterator[Check]:
    """Compare with all that was measured and that the templates say something of."""
    for name in [*table.architectures(), *table.published(), *table.encoding()]:
        summary = table.summary(name)
        if summary.graph is None or summary.architecture not in templates.graphs:
            continue
        for key, measured in table.measured(name).items():
            told = None if isinstance(measured, str) else answer(summary, table.options(key), templates)
            if isinstance(measured, str) or told is None or told[1] is None:
                continue
            pairs = ((told[1].device, measured.device[2]), (told[1].host, measured.host[2]))
            good = all(abs(size - truth) <= WITHIN * truth for size, truth in pairs)
            yield Check(summary, name, key, told[0], good)


def checks(templates: Templates, answer: Answer) -> Checks:
    """Give whether each measured model and option set was met, by architecture and class of graph, then by kinds."""
    found: Checks = defaultdict(lambda: defaultdict(list))
    for one in compared(templates, answer):
        if one.summary.graph is not None:
            found[one.summary.architecture, one.graph][model_key(one.summary.graph)].append(one.good)
    return found


def met(templates: Templates, answer: Answer) -> Met:
    """Give the measured models and option sets that the templates say the same of, unless they miss another alike."""
    kept = replace(templates, left_out=left_out(templates, answer))
    return {(one.summary.architecture, one.name, one.options) for one in compared(kept, answer) if one.good}


def left_out(templates: Templates, answer: Answer = by_steps) -> dict[str, dict[str, list[str]]]:
    """Give what disagrees; of classes that were not measured all, where anything of the architecture disagrees."""
    found = checks(templates, answer)
    out: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for architecture, graphs in templates.graphs.items():
        own = {graph: kinds for (name, graph), kinds in found.items() if name == architecture}
        for suffix in ("", "/") if answer is by_operations else ("",):
            alike = [kinds for graph, kinds in own.items() if graph.endswith("/") == bool(suffix)]
            whole = bool(alike) and all(all(good) for kinds in alike for good in kinds.values())
            for graph in graphs:
                kinds = own.get(graph + suffix, {})
                bad = [kind for kind, good in kinds.items() if not all(good)]
                if bad or (not kinds and not whole):
                    out[architecture][graph + suffix] = sorted(bad) if len(bad) < len(kinds) else ["*"]
    return dict(out)


def left_out_operations(templates: Templates) -> dict[str, dict[str, list[str]]]:
    """Do the same for the operations of graphs."""
    return left_out(templates, by_operations)
