"""Operators that are killed, replaced, doubled or narrowed: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.client import eventually, stays
from support.harness import GPUS, grant, resource_of
from support.helm import NAMESPACE, render
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from support.site import Site

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/paddock-operator"


def test_killed_amid_fifty_applies_nothing_is_lost_doubled_or_restarted(site: Site) -> None:
    operator = site.operator()
    site.node(devices=[card(number, 30) for number in range(4)])
    names = [f"m{number}" for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        applied = threading.Thread(target=lambda: list(pool.map(site.apply, names)))
        applied.start()
        eventually(lambda: len(site.all_pods()) >= 12)
        operator.kill()
        before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in site.all_pods()}
        applied.join()
    assert len(before) < 50, "it was killed in the middle"
    operator = site.operator()

    def served() -> bool:
        deployments = site.client.items(site.path())
        return [one["status"]["readyReplicas"] for one in deployments] == [1] * 50

    eventually(served, 30, "all are served")
    site.settle()
    pods = {one["metadata"]["name"]: one["metadata"]["uid"] for one in site.all_pods()}
    assert len(pods) == 50
    assert {name: pods[name] for name in before} == before, "no pod was restarted"
    assert set(site.reservations()) == set(pods), "nothing is orphaned"
    assert all(site.kubelet.created[f"{site.namespace}/{name}"] == 1 for name in pods), "nothing was made twice"

    operator.terminate()
    mark = site.plane.audit_mark()
    operator = site.operator()
    site.settle(1)
    assert not site.plane.written(mark), "a restart writes nothing"
    assert operator.writes() == 0
    stays(lambda: not site.plane.written(mark), 4)  # beyond the first full comparison


def test_restarted_it_writes_nothing_about_those_that_wait_either(site: Site) -> None:
    operator = site.operator()
    site.node(devices=[card(0, 3)])
    site.serve("a")
    site.apply("b")
    site.wait_for("Placed", "False", "WaitingForDevice", "b")
    site.settle()
    operator.terminate()
    mark = site.plane.audit_mark()
    operator = site.operator()
    operator.wait_until("first decision")
    site.settle(1)
    assert not site.plane.written(mark)
    site.client.delete(site.path("a"))
    site.wait_for("Available", "True", "Serving", "b", 20)


def test_what_changed_while_no_operator_ran_is_done_at_the_start(site: Site) -> None:
    operator = site.operator(leader_election="true", lease_seconds=4)
    site.node(devices=[card(0, 5)])
    gone = site.serve("gone")
    site.serve("changed")
    site.settle()
    operator.kill()
    site.client.delete(site.path("gone"))
    site.client.delete(site.path(gone["metadata"]["name"], "pods"), gracePeriodSeconds=0)
    site.change("changed", suspend=True)
    site.apply("new")
    site.operator(leader_election="true", lease_seconds=4)
    site.wait_for("Available", "True", "Serving", "new")
    site.wait_for("Available", "False", "Suspended", "changed")
    eventually(lambda: site.pods("changed") == [])
    assert set(site.gpu()["deployments"]) >= {f"{site.namespace}/new"}


@pytest.mark.long
def test_reservations_of_pods_that_never_came_to_be_are_taken_back(site: Site) -> None:
    site.operator()
    site.node()
    site.settle()
    orphan = {"pod": "x/gone-0", "deployment": "x/gone", "uid": "u", "bytes": 2**30, "since": "2026-01-01T00:00:00Z"}
    site.client.do("PATCH", f"{GPUS}/{GPU}/status", {"status": {"reservations": [orphan]}})
    eventually(lambda: not site.gpu()["reservations"], 50)


def test_on_sigterm_a_standby_takes_over_at_once(site: Site) -> None:
    site.plane.stop_operators()
    site.client.delete(LEASE)
    first = site.plane.operator(leader_election="true", lease_seconds=15)
    second = site.plane.operator(leader_election="true", lease_seconds=15, ready=False)
    second.wait_until("standing by")
    site.node()
    site.serve()
    mark = site.settle()
    moment = time.monotonic()
    assert first.terminate() == 0
    second.wait_until("ready:")
    taken = second.said("leading as")
    assert taken is not None
    assert taken - moment < 10, "it waited for the lease of 15 s to run out"
    site.settle(0.5)
    assert not site.plane.written(mark)
    site.serve("more")


def test_after_a_kill_a_standby_takes_over_when_the_lease_has_run_out(site: Site) -> None:
    site.plane.stop_operators()
    site.client.delete(LEASE)
    first = site.plane.operator(leader_election="true", lease_seconds=3)
    second = site.plane.operator(leader_election="true", lease_seconds=3, ready=False)
    second.wait_until("standing by")
    first.kill()
    moment = time.monotonic()
    second.wait_until("ready:")
    taken = second.said("leading as")
    assert taken is not None
    assert taken - moment > 1.5, "it took a lease that was still held"


def test_a_leader_that_lost_its_lease_ends(site: Site) -> None:
    site.plane.stop_operators()
    site.client.delete(LEASE)
    operator = site.plane.operator(leader_election="true", lease_seconds=4)
    spec = {"holderIdentity": "somebody", "renewTime": "2126-01-01T00:00:00.000000Z", "leaseDurationSeconds": 60}
    site.client.do("PATCH", LEASE, {"spec": spec})
    eventually(lambda: not operator.running, 10)
    assert operator.terminate() == 1
    assert operator.said("the lease was taken by somebody")
    site.client.delete(LEASE)


def test_a_new_version_with_other_images_restarts_no_server(site: Site) -> None:
    operator = site.operator()
    site.node()
    old = site.serve("old")
    site.settle()
    operator.terminate()
    mark = site.plane.audit_mark()
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda-b99999"
    site.operator(server_images=json.dumps({"CUDA": image}))
    site.settle(1)
    assert not site.plane.written(mark)
    new = site.serve("new")
    assert new["spec"]["containers"][0]["image"] == image
    assert [one["metadata"]["uid"] for one in site.pods("old")] == [old["metadata"]["uid"]]


def test_with_rights_in_some_namespaces_only_it_serves_those(site: Site) -> None:
    site.plane.stop_operators()
    objects = render({"watchNamespaces": [site.namespace]}, "narrow")
    account = next(
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"].endswith("operator")
    )
    grant(site.plane.server, objects)
    mark = site.plane.audit_mark()
    site.another_operator(watch_namespaces=site.namespace, kubeconfig=site.plane.kubeconfig_for(account))
    site.node()
    elsewhere = "/apis/paddock.dev/v1alpha1/namespaces/default/modeldeployments"
    site.client.do("POST", elsewhere, site.body("elsewhere"))
    site.serve()
    site.client.delete(site.path("gemma"))
    eventually(lambda: not site.reservations(), 20)
    assert "status" not in site.client.do("GET", f"{elsewhere}/elsewhere")
    site.client.delete(f"{elsewhere}/elsewhere")
    refused = {
        f"{one['verb']} {resource_of(one)}"
        for one in site.plane.audit()[mark:]
        if one["responseStatus"]["code"] == 403 and one["user"]["username"].endswith(f":{account}")
    }
    assert not refused
