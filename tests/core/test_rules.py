"""What PlacementPolicies let a deployment have."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import ModelDeploymentSpec, Policy
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.fleet import Claim, Fleet
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.request import Request, request_of
from paddock.core.rules import Leave, Rule, default_policy, leave_under, priority_problem, rule_of, rules_for
from support.builders import GIB, GTX_1060, RTX_4080, RTX_6000, device, fleet


def rule(name: str = "team", **spec: Any) -> Rule:
    return rule_of(name, PlacementPolicySpec.model_validate(spec))


def asked(rules: tuple[Rule, ...], need: int = 1) -> Request:
    return Request(need=need * GIB, rules=rules)


@pytest.mark.parametrize(
    ("patterns", "namespace", "covered"),
    [
        ([], "default", True),
        (["default"], "default", True),
        (["team-*", "x"], "team-a", True),
        (["team-?"], "team-10", False),
        (["team"], "team-a", False),
    ],
)
def test_a_policy_means_namespaces_by_name_or_pattern(patterns: list[str], namespace: str, covered: bool) -> None:
    assert rule(namespaces=patterns).covers(namespace) is covered


def test_all_policies_that_mean_a_namespace_hold_and_the_first_default_counts() -> None:
    every = [
        rule("z", defaultPolicy="Spread"),
        rule("b", namespaces=["team-*"], defaultPolicy="BestFit"),
        rule("a"),
        rule("other", namespaces=["x"]),
    ]
    found = rules_for("team-a", every)
    assert [one.name for one in found] == ["a", "b", "z"]
    assert default_policy(found) is Policy.BEST_FIT
    assert default_policy(rules_for("x", every)) is Policy.SPREAD
    assert default_policy(()) is None


@pytest.mark.parametrize(
    ("placement", "policy"),
    [
        ({}, Policy.BEST_FIT),
        ({"policy": "Auto"}, Policy.BEST_FIT),
        ({"policy": "Fastest"}, Policy.FASTEST),
        ({"minTokensPerSecond": 5}, Policy.AUTO),
    ],
)
def test_the_default_is_for_those_who_leave_it_at_auto(placement: dict[str, Any], policy: Policy) -> None:
    spec = ModelDeploymentSpec.model_validate({"model": {"source": "file:///models/x"}, "placement": placement})
    assert request_of(spec, GIB, 0, 0, (rule(defaultPolicy="BestFit"),)).policy is policy


def test_a_device_that_is_not_for_the_namespace_is_left_alone() -> None:
    found = place(asked((rule(gpus={"maxMemory": "8Gi"}),)), fleet(GTX_1060, RTX_4080))
    assert isinstance(found, Placement)
    assert found.device == GTX_1060
    other = next(one for one in found.judged if one.device == RTX_4080)
    assert (other.verdict, other.detail) == (
        Verdict.NOT_ALLOWED,
        "PlacementPolicy team: it has 11.99 GiB in all, more than maxMemory 8Gi",
    )


def held(namespace: str, gib: int) -> Claim:
    return Claim(f"{namespace}/m-0", f"{namespace}/m", gib * GIB)


def test_a_quota_counts_what_its_namespaces_have_everywhere() -> None:
    where = fleet(
        replace(GTX_1060, claims=(held("team-a", 3), held("other", 2)), free=None),
        replace(RTX_6000, claims=(held("team-b", 4),)),
    )
    limit = rule(namespaces=["team-*"], maxGpuMemory="8Gi")
    assert isinstance(place(asked((limit,)), where), Placement)
    found = place(asked((limit,), 2), where)
    assert isinstance(found, Unplaceable)
    assert found.reason is Reason.WAITING_FOR_DEVICE
    assert found.message == (
        "0 of 2 devices fit: 1 NoRoom, 1 OverQuota. Nearest is NVIDIA GeForce GTX 1060 (0000:01:00.0) on node1: "
        "needs 2 GiB, has 1 GiB left of 6 GiB (3 GiB for team-a/m, 2 GiB for other/m), 1 GiB short"
    )
    alone = place(asked((limit,), 2), fleet(replace(RTX_6000, claims=(held("team-b", 7),))))
    assert isinstance(alone, Unplaceable)
    assert alone.nearest is not None
    assert alone.nearest.detail == (
        "needs 2 GiB, PlacementPolicy team has 1 GiB left of 8 GiB that it allows over all GPUs"
    )
    shortage = alone.nearest.shortage
    assert (shortage.memory, shortage.required_bytes, shortage.available_bytes) == ("Quota", 2 * GIB, GIB)


def test_a_budget_counts_on_each_device_that_it_means() -> None:
    limit = rule(namespaces=["team-*"], budgets=[{"selector": {"names": ["*4080*"]}, "memory": "3Gi"}])
    busy = replace(RTX_4080, claims=(held("team-a", 2), held("other", 5)))
    assert isinstance(place(asked((limit,)), fleet(busy)), Placement)
    found = place(asked((limit,), 2), fleet(busy, GTX_1060))
    assert isinstance(found, Placement)
    assert found.device == GTX_1060
    other = next(one for one in found.judged if one.device == busy)
    assert (other.verdict, other.shortfall) == (Verdict.OVER_QUOTA, GIB)


def test_a_priority_above_what_is_allowed_is_refused() -> None:
    rules = (rule("a", maxPriority=10), rule("b", maxPriority=5), rule("c"))
    assert priority_problem(5, rules) is None
    assert priority_problem(6, rules) == "spec.priority is 6; PlacementPolicy b allows up to 5 here"


@given(st.lists(st.tuples(st.sampled_from(["team-a", "other"]), st.integers(1, 6)), max_size=12), st.integers(1, 20))
def test_no_quota_is_ever_exceeded(asks: list[tuple[str, int]], quota: int) -> None:
    limit = rule(namespaces=["team-*"], maxGpuMemory=f"{quota}Gi")
    where: Fleet = fleet(device("a", free=None), device("b", pci_id=None, free=None, total=24 * GIB))
    for number, (namespace, size) in enumerate(asks):
        found = place(asked(rules_for(namespace, [limit]), size), where)
        if isinstance(found, Placement) and found.device is not None:
            claim = Claim(f"{namespace}/m-{number}", f"{namespace}/m", size * GIB)
            where = where.with_claim(found.device.gpu, claim)
    mine = sum(one.bytes for each in where.devices for one in each.claims if one.deployment == "team-a/m")
    assert mine <= quota * GIB


def test_disruption_needs_one_rule_that_allows_it_and_none_that_forbids_it() -> None:
    silent = rule("silent")
    both = rule("both", disruption={"moves": True, "eviction": True, "minInterval": "1h30m", "maxPerMinute": 9})
    moves = rule("moves", disruption={"moves": True, "minInterval": "0s", "maxPerMinute": 2, "holdRoomAfter": "1m"})
    assert leave_under([]) == leave_under([silent]) == Leave()
    assert leave_under([silent, both]) == Leave(moves=True, eviction=True, interval=5400, per_minute=9)
    assert leave_under([both, moves]) == Leave(moves=True, interval=5400, per_minute=2, hold_after=60)
    assert leave_under([both, rule("never", disruption={})]).moves is False
