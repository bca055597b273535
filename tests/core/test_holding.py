"""Holder pods: what they are, and what a card is that one has, could have, or cannot have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paddock.api.binding import Binder
from paddock.api.modeldeployment import DeviceRef
from paddock.api.vocabulary import Verdict
from paddock.core.binding import Asked, Chosen, Names, NodeFacts, Refused, bind, choose
from paddock.core.filters import judge_all
from paddock.core.fleet import Claim, Device, Holding
from paddock.core.holding import Holder, holder_name, holder_of, holder_pod
from paddock.core.request import Request
from support.builders import GIB, RTX_4080, fleet
from support.restricted import violations

FACTS = NodeFacts("node1", frozenset({"nvidia"}), {"nvidia.com/gpu": 2})
RESOURCE = "nvidia.com/gpu"
AGENT: dict[str, Any] = {
    "metadata": {
        "name": "paddock-agent-x",
        "namespace": "paddock-system",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "paddock-agent", "uid": "u", "controller": True}
        ],
    },
    "spec": {
        "nodeName": "node1",
        "containers": [{"name": "agent", "image": "agent:1"}],
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "system-node-critical",
        "hostPID": True,
        "runtimeClassName": "nvidia",
    },
}


def built(node: str = "node1") -> dict[str, Any]:
    return holder_pod(holder_name(node, 0), node, RESOURCE, AGENT, 65532)


def lent(holding: Holding | None) -> Device:
    return replace(RTX_4080, lent=RESOURCE, holding=holding)


def test_a_holder_asks_for_one_card_and_can_do_nothing() -> None:
    pod = built()
    assert violations(pod) == []
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"][RESOURCE] == "1"
    assert container["image"] == "agent:1"
    assert "volumes" not in pod["spec"]
    assert "hostPID" not in pod["spec"]
    assert "runtimeClassName" not in pod["spec"], "it has no use for its card"
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"][0]["values"] == ["node1"]


def test_a_holder_comes_where_its_agent_is_and_goes_with_its_pool() -> None:
    pod = built()
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["priorityClassName"] == "system-node-critical"
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "paddock-agent", "uid": "u"}
    ], "a controller reference would have the DaemonSet take it for its own"


def test_a_holder_is_read_as_it_was_built() -> None:
    pod = built("a" * 253)
    assert len(pod["metadata"]["name"]) <= 63
    assert holder_of(pod) == Holder(holder_name("a" * 253, 0), "", "a" * 253, RESOURCE)
    assert holder_name("node1", 0) != holder_name("node1", 1)
    assert holder_name("node1", 0) != holder_name("node2", 0)


@pytest.mark.parametrize(
    ("status", "problem", "ended"),
    [
        ({}, "", False),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}]},
            "Insufficient nvidia.com/gpu",
            False,
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]},
            "ErrImagePull: no such image",
            False,
        ),
        ({"phase": "Failed", "message": "no healthy devices"}, "no healthy devices", True),
    ],
)
def test_what_keeps_a_holder_from_its_card_is_told(status: dict[str, Any], problem: str, ended: bool) -> None:
    found = holder_of({**built(), "status": status})
    assert (found.problem, found.ended) == (problem, ended)


def test_a_card_that_a_holder_has_is_shared_and_given_by_its_uuid() -> None:
    held = replace(lent(Holding(pod="paddock-holder-x")), claims=(Claim("team/a-0", "team/a", GIB, resident=False),))
    found = choose(held, FACTS, Asked())
    assert isinstance(found, Chosen)
    assert found.binder is Binder.VENDOR_PLUGIN
    assert "paddock-holder-x" in found.reason
    given = bind(held, FACTS, GIB, Names("nvidia"), found)
    assert given.resources == {}, "the holder is counted"
    assert given.environment["NVIDIA_VISIBLE_DEVICES"] == f"runtime.nvidia.com/gpu={RTX_4080.uuid}"
    assert given.exact_device
    assert not held.exclusive
    assert held.available(0) > 0
    request = Request(need=GIB, devices=(DeviceRef(uuid=RTX_4080.uuid),))
    assert [one.verdict for one in judge_all(request, fleet(held))] == [Verdict.FITS]


def test_a_card_that_a_holder_could_have_is_planned_with() -> None:
    free = lent(Holding(free=True))
    assert free.unheld
    assert [one.verdict for one in judge_all(Request(need=GIB), fleet(free))] == [Verdict.FITS]
    assert not lent(Holding(pod="x")).unheld
    assert not lent(None).unheld


def test_a_card_of_somebody_else_is_refused_and_says_whose_it_is() -> None:
    (told,) = judge_all(Request(need=GIB), fleet(lent(Holding(why="the plugin gave it to team/training"))))
    assert (told.verdict, told.detail) == (Verdict.VENDOR_PLUGIN_PRESENT, "the plugin gave it to team/training")


def test_without_the_runtime_class_a_held_card_cannot_be_given() -> None:
    found = choose(lent(Holding(pod="x")), replace(FACTS, runtime_classes=frozenset()), Asked())
    assert isinstance(found, Refused)
    assert found.verdict is Verdict.RUNTIME_CLASS_MISSING
