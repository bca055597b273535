"""Nodes and devices that come, go, fall silent or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.api.report import Fault
from support.client import eventually, stays
from support.harness import GPUS, MODEL
from support.pretend_agent import card, summary
from support.site import GPU

if TYPE_CHECKING:
    from support.site import Site


def test_devices_of_a_silent_agent_are_not_ready_and_what_runs_is_left_alone(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve("a")
    site.plane.silence("node1")
    eventually(lambda: site.gpu_ready()["reason"] == "AgentSilent", 15)
    assert site.gpu_ready()["status"] == "False"
    site.apply("b")
    site.wait_for("Available", "False", name="b")
    assert site.pods("b") == []
    assert site.condition("Available", "a")["status"] == "True"
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert len(site.reservations()) == 1
    site.plane.wake("node1")
    eventually(lambda: site.gpu_ready()["status"] == "True", 15)
    site.wait_for("Available", "True", "Serving", "b", 20)


def test_an_agent_that_was_silent_before_the_operator_began_is_noticed(site: Site) -> None:
    operator = site.operator()
    site.node()
    operator.terminate()
    site.plane.silence("node1")
    site.operator()
    eventually(lambda: site.gpu_ready()["reason"] == "AgentSilent", 15)


def test_a_device_that_vanishes_and_a_listing_that_fails_are_told(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 16)])
    site.plane.report("node1", [card(1, 16)])
    eventually(lambda: site.gpu_ready()["reason"] == "NotListed")
    assert site.gpu_ready("node1-0000-02-00-0")["status"] == "True"
    site.plane.report("node1", [], [Fault(code="ListingCrashed", message="the listing ended by signal 11")])
    eventually(lambda: site.gpu_ready("node1-0000-02-00-0")["reason"] == "ListingFailed")
    assert "signal 11" in site.gpu_ready("node1-0000-02-00-0")["message"]
    site.plane.report("node1", [card(0, 16), card(1, 16)])
    eventually(lambda: site.gpu_ready()["status"] == "True" == site.gpu_ready("node1-0000-02-00-0")["status"])


def test_a_deployment_from_before_any_agent_starts_when_one_reports(site: Site) -> None:
    site.operator()
    site.apply("gemma")
    site.wait_for("Accepted", "Unknown", "NoNodeAgent")
    site.node()
    site.wait_for("Available", "True", "Serving")


def test_an_agent_that_is_quicker_than_the_news_of_its_node_is_heard(site: Site) -> None:
    operator = site.operator()
    site.settle()
    looks = operator.metrics()["paddock_reconciles_total"]
    node = site.node(announced=False)
    eventually(lambda: operator.metrics()["paddock_reconciles_total"] > looks, what="its report was looked at")
    assert site.gpus() == []
    site.plane.announce(node.name, node.address)
    eventually(lambda: [one["metadata"]["name"] for one in site.gpus()] == [GPU])


def test_a_node_that_comes_back_with_other_cards_has_only_those(site: Site) -> None:
    """What its agent said in its former life is not believed for as long as a report without an agent usually is."""
    site.operator()
    for _ in range(4):
        site.node(devices=[card(0, 16), card(1, 24)])
        site.plane.remove_node("node1")
        eventually(lambda: not site.client.items(GPUS), 20)
        mark = site.plane.audit_mark()
        site.node(devices=[card(0, 16)])
        site.settle()
        assert site.plane.written(mark)["create paddock.dev/gpus"] == 1
        assert [one["metadata"]["name"] for one in site.gpus()] == [GPU]
        site.plane.remove_node("node1")
        eventually(lambda: not site.client.items(GPUS), 20)


def test_a_node_that_comes_back_without_a_file_is_not_believed_to_have_it(site: Site) -> None:
    site.operator()
    site.node()
    site.serve()
    site.plane.remove_node("node1")
    eventually(lambda: not site.gpus() or site.gpu()["conditions"][0]["status"] == "False", 20)
    node = site.node()
    node.agent.headers.pop(MODEL)
    site.apply("late")
    site.wait_for("Accepted", "False", "ModelNotFound", "late")


def test_without_any_device_a_model_runs_on_the_cpu_where_it_may(site: Site) -> None:
    site.plane.stop_operators()
    site.operator()
    site.node(devices=[])
    site.apply("may", placement={"allowCPU": True})
    site.apply("may-not")
    site.wait_for("Available", "True", "Serving", "may")
    assert site.status("may")["placements"][0].get("devices", []) == []
    site.wait_for("Placed", "False", "NoNodeAgent", "may-not")


def test_drained_it_moves_to_another_node(site: Site) -> None:
    site.operator()
    site.node("node1", [card(0, 24)])
    site.node("node2", [card(0, 16)])
    pod = site.serve()
    assert pod["spec"]["nodeName"] == "node1"
    site.client.do("PATCH", "/api/v1/nodes/node1", {"spec": {"unschedulable": True}})
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    site.client.do("POST", f"{site.path(name, 'pods')}/eviction", eviction)

    def moved() -> bool:
        (there,) = site.pods()
        return bool(there["metadata"]["uid"] != pod["metadata"]["uid"] and there["spec"].get("nodeName") == "node2")

    eventually(moved, 15)
    site.wait_for("Available", "True", "Serving")
    eventually(lambda: not site.gpu()["reservations"])
    assert site.gpu("node2-0000-01-00-0")["deployments"] == [f"{site.namespace}/gemma"]


def test_a_cordoned_node_gets_nothing_new_and_keeps_what_runs(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve("a")
    site.client.do("PATCH", "/api/v1/nodes/node1", {"spec": {"unschedulable": True}})
    site.apply("b")
    assert "cordoned" in site.wait_for("Placed", "False", "NoDevice", "b")["message"]
    assert site.pods("a")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    site.client.do("PATCH", "/api/v1/nodes/node1", {"spec": {"unschedulable": None}})
    site.wait_for("Available", "True", "Serving", "b")


def test_a_node_that_is_deleted_takes_its_devices_along(site: Site) -> None:
    site.operator()
    site.node("node1", [card(0, 24)])
    site.node("node2", [card(0, 16)])
    pod = site.serve()
    site.plane.remove_node("node1")
    eventually(lambda: site.gpu_ready()["status"] == "False")
    assert site.gpu()["reservations"], "the pod object is still there, and so is its reservation"
    # Kubernetes' pod garbage collector does this 40 seconds later.
    site.client.delete(site.path(pod["metadata"]["name"], "pods"), gracePeriodSeconds=0)
    eventually(lambda: site.pods()[0]["spec"]["nodeName"] == "node2")
    site.wait_for("Available", "True", "Serving")
    eventually(lambda: site.client.get(f"{GPUS}/{GPU}") is None)


def test_free_memory_that_others_take_counts(site: Site) -> None:
    site.operator()
    site.node()
    busy = card(0, 16).model_copy(update={"memory_free": 1024**3})
    site.plane.report("node1", [busy])
    eventually(lambda: site.gpu()["memory"]["free"] == "1024Mi")
    site.apply("gemma")
    assert "used by others" in site.wait_for("Placed", "False", "WaitingForDevice")["message"]
    site.plane.report("node1", [card(0, 16)])
    site.wait_for("Available", "True", "Serving")


def test_only_nodes_with_the_file_are_used(site: Site) -> None:
    site.operator()
    site.node("node1", [card(0, 24)])
    site.node("node2", [card(0, 16)]).agent.headers["/models/here.gguf"] = summary()
    pod = site.serve(model={"source": "file:///models/here.gguf"})
    assert pod["spec"]["nodeName"] == "node2"
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 0.5)


def test_a_runtime_class_that_comes_later_is_seen_at_once(site: Site) -> None:
    """By its watch: the first comparisons after the start, which would find it too, are waited for."""
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    operator = site.operator(runtime_classes='{"nvidia": "later"}', resync_seconds=600)
    site.node()
    site.apply("gemma")
    site.wait_for("Placed", "False", "NoDevice")
    eventually(lambda: operator.calls()["list node.k8s.io/runtimeclasses"] >= 3, 30, "the start and two comparisons")
    site.settle()
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "later"}, "handler": "nvidia"}
    site.client.do("POST", path, body)
    try:
        site.wait_for("Available", "True", "Serving")
    finally:
        site.client.delete(f"{path}/later")


def test_a_gpu_of_which_nothing_could_be_written_goes_with_its_node_and_not_before(site: Site) -> None:
    """An operator ended between making the object and writing what it knows; one that a user made stays."""
    site.operator()
    site.node()
    meta = {"annotations": {"paddock.dev/node": "node1"}}
    body = {"apiVersion": "paddock.dev/v1alpha1", "kind": "GPU"}
    site.plane.stop_operators()
    site.client.delete(f"{GPUS}/{GPU}")
    for name in (GPU, "node1-0000-77-00-0"):
        site.client.do("POST", GPUS, {**body, "metadata": {**meta, "name": name}})
    site.client.do("POST", GPUS, {**body, "metadata": {"name": "of-a-user"}, "spec": {"reserve": "1Gi"}})
    site.another_operator()
    eventually(lambda: site.gpu()["node"] == "node1", what="what is there is written")
    eventually(lambda: site.client.get(f"{GPUS}/node1-0000-77-00-0") is None, what="what is not there is removed")
    site.plane.stop_operators()
    site.client.do("POST", GPUS, {**body, "metadata": {**meta, "name": "node1-0000-77-00-0"}})
    site.plane.remove_node("node1")
    site.another_operator()
    eventually(lambda: [one["metadata"]["name"] for one in site.client.items(GPUS)] == ["of-a-user"], 20)
    site.client.delete(f"{GPUS}/of-a-user")
