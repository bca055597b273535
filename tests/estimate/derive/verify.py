"""Leaves out of the templates what does not agree with llama.cpp on models that nothing was derived from."""

from collections import defaultdict

from estimate import table
from paddock.core.geometry import Geometry
from paddock.core.graphs import Templates, compute_sizes, graph_class
from paddock.core.outline import model_key

WITHIN = 0.01

Checks = dict[tuple[str, str], dict[str, list[bool]]]


def checks(templates: Templates) -> Checks:
    """Give whether each measured model and option set was met, by architecture and class of graph, then by kinds."""
    found: Checks = defaultdict(lambda: defaultdict(list))
    for name in [*table.architectures(), *table.published()]:
        summary = table.summary(name)
        for key, measured in table.measured(name).items():
            options = table.options(key)
            if isinstance(measured, str) or options.gpu_layers is not None or summary.graph is None:
                continue
            sizes = compute_sizes(summary, options, Geometry.of(summary, options), templates)
            if sizes is not None:
                pairs = ((sizes.device, measured.device[2]), (sizes.host, measured.host[2]))
                good = all(abs(size - truth) <= WITHIN * truth for size, truth in pairs)
                found[summary.architecture, graph_class(summary, options)][model_key(summary.graph)].append(good)
    return found


def left_out(templates: Templates) -> dict[str, dict[str, list[str]]]:
    """Give what disagrees; of classes that were not measured all, where anything of the architecture disagrees."""
    found = checks(templates)
    out: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for architecture, graphs in templates.graphs.items():
        own = [kinds for (name, _), kinds in found.items() if name == architecture]
        whole = bool(own) and all(all(good) for kinds in own for good in kinds.values())
        for graph in graphs:
            kinds = found.get((architecture, graph), {})
            bad = [kind for kind, good in kinds.items() if not all(good)]
            if bad or (not kinds and not whole):
                out[architecture][graph] = sorted(bad) if len(bad) < len(kinds) else ["*"]
    return dict(out)
