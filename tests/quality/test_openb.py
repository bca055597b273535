"""On traces in the format of Alibaba's openb: no worse than first-fit with a fixed order, a strong baseline there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.api.modeldeployment import Policy
from paddock.api.vocabulary import Verdict
from paddock.core.filters import judge_all
from paddock.core.fleet import Claim, Fleet
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from quality.openb import read_nodes, read_pods, write_synthetic
from support.builders import MIB

TRACES = Path(__file__).parent / "traces"
NODES, PODS = TRACES / "openb_node_list_synthetic.csv", TRACES / "openb_pod_list_synthetic.csv"
Pick = Callable[[Request, Fleet], str | None]


def best_fit(request: Request, where: Fleet) -> str | None:
    found = place(replace(request, policy=Policy.BEST_FIT), where)
    return found.device.gpu if isinstance(found, Placement) and found.device is not None else None


def first_fit(seed: int, where: Fleet) -> Pick:
    """Give the first device that fits, the nodes in an order that is drawn once."""
    nodes = sorted(where.nodes)
    random.Random(seed).shuffle(nodes)  # noqa: S311 no secret
    rank = {name: number for number, name in enumerate(nodes)}

    def pick(request: Request, now: Fleet) -> str | None:
        fitting = [one.device for one in judge_all(request, now) if one.verdict is Verdict.FITS]
        return min(fitting, key=lambda one: (rank[one.node], one.index or 0)).gpu if fitting else None

    return pick


def unallocated(pick: Pick, seed: int) -> float:
    """Give the per cent of all GPUs that are free once pods that want as much as there is have come."""
    where = read_nodes(NODES)
    pods = read_pods(PODS)
    random.Random(f"pods {seed}").shuffle(pods)  # noqa: S311 no secret
    room = sum(one.total or 0 for one in where.devices)
    wanted = 0
    for name, request in pods:
        wanted += request.need
        if wanted > room:
            break
        gpu = pick(request, where)
        if gpu is not None:
            where = where.with_claim(gpu, Claim(name, name, request.need, host_bytes=request.host_need))
    else:
        raise AssertionError("the trace wants less than there is")
    return 100 - 100 * sum(one.reserved for one in where.devices) / room


def test_the_reader_takes_nodes_with_gpus_and_pods_of_one_gpu_or_less() -> None:
    where, pods = read_nodes(NODES), read_pods(PODS)
    assert all(one.total == 1000 * MIB for one in where.devices)
    assert {one.description for one in where.devices} == {"T4", "V100M16", "G2", "P100", "A10"}
    assert all(request.need <= 1000 * MIB for _, request in pods)
    picky = next(request for _, request in pods if request.selector is not None)
    assert picky.selector is not None
    assert picky.selector.names in (["V100M16", "G2"], ["T4"])
    assert where.host_limit(next(iter(where.nodes.values()))) % MIB == 0


def test_the_trace_in_the_repository_is_what_its_writer_writes(tmp_path: Path) -> None:
    write_synthetic(tmp_path)
    for one in (NODES, PODS):
        assert (tmp_path / one.name).read_text() == one.read_text()


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns"):
        read_nodes(other)


def test_best_fit_leaves_no_more_unallocated_than_first_fit_in_a_fixed_order() -> None:
    seeds = range(4)
    ours = [unallocated(best_fit, seed) for seed in seeds]
    first = [unallocated(first_fit(seed, read_nodes(NODES)), seed) for seed in seeds]
    assert sum(ours) <= sum(first)
