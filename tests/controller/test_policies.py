"""What PlacementPolicies allow is held for what is new, and nothing that runs is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.harness import API
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.site import Site

POLICIES = f"{API}/placementpolicies"


@pytest.fixture
def policy(site: Site) -> Iterator[str]:
    """Give the path of a policy of this test's namespace, which is there and says nothing yet."""
    name = f"of-{site.namespace}"
    body = {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": name},
        "spec": {"namespaces": [site.namespace]},
    }
    site.client.do("POST", POLICIES, body)
    yield f"{POLICIES}/{name}"
    site.client.delete(f"{POLICIES}/{name}")


def say(site: Site, policy: str, **spec: Any) -> None:
    site.client.do("PATCH", policy, {"spec": spec})
    site.settle()


def test_devices_quota_and_priority_are_held_for_what_is_new(site: Site, policy: str) -> None:
    site.operator()
    site.node(devices=[card(0, 6), card(1, 16)])
    first = site.serve("a")
    assert site.status("a")["placements"][0]["devices"][0]["gpu"] == "node1-0000-02-00-0"
    say(site, policy, gpus={"maxMemory": "8Gi"}, maxGpuMemory="4Gi", maxPriority=3)
    site.apply("b", priority=4)
    site.wait_for("Accepted", "False", "PriorityRefused", "b")
    site.change("b", priority=3)
    site.wait_for("Available", "True", "Serving", "b")
    assert site.status("b")["placements"][0]["devices"][0]["gpu"] == "node1-0000-01-00-0"
    site.apply("c")
    told = site.wait_for("Placed", "False", "WaitingForDevice", "c")["message"]
    assert f"PlacementPolicy of-{site.namespace} has 0 MiB left of 4 GiB" in told
    assert site.status("c")["shortage"]["memory"] == "Quota"
    assert [one["metadata"]["uid"] for one in site.pods("a")] == [first["metadata"]["uid"]], "what runs stays"
    say(site, policy, maxGpuMemory=None)
    site.wait_for("Available", "True", "Serving", "c")
