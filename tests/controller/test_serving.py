"""The life of a deployment on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.client import eventually, stays
from support.pretend_agent import card, uuid_of
from support.pretend_kubelet import Behaviour

if TYPE_CHECKING:
    from support.site import Site


def test_a_deployment_is_booked_then_made_and_told_in_one_write(site: Site) -> None:
    site.operator()
    site.node()
    mark = site.settle()
    site.kubelet.paused = True
    site.apply("gemma")
    (pod,) = eventually(site.pods)
    name = pod["metadata"]["name"]
    booked = site.reservations()
    assert list(booked) == [name]
    assert booked[name] % (256 * 1024**2) == 0
    site.settle()
    writes = site.plane.written(mark)
    assert writes["create /pods"] == 1
    assert writes["update paddock.dev/gpus/status"] == 1, "booked by one write"
    assert writes["patch paddock.dev/modeldeployments/status"] == 1, "one status write for one step"
    order = [f"{one['verb']} {one['objectRef']['resource']}" for one in site.plane.audit()[mark:]]
    assert order.index("update gpus") < order.index("create pods"), "booked before the pod exists"

    status = site.status()
    (placed,) = status["placements"]
    assert placed["node"] == "node1"
    assert placed["devices"][0]["uuid"] == uuid_of("node1", card(0, 16))
    assert placed["devices"][0]["needBytes"] == booked[name]
    assert status["endpoint"] == f"http://gemma.{site.namespace}.svc:8080/v1"
    assert site.condition("Placed")["status"] == "True"
    assert site.condition("Verified")["status"] == "Unknown"
    assert (site.condition("Available")["status"], site.condition("Available")["reason"]) == ("False", "Starting")


def test_the_pod_sees_its_device_alone(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 6), card(1, 16)])
    pod = site.serve()
    container = pod["spec"]["containers"][0]
    uuid = uuid_of("node1", card(1, 16))
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == f"runtime.nvidia.com/gpu={uuid}"
    assert environment["CUDA_VISIBLE_DEVICES"] == uuid
    assert container["image"].endswith(":server-cuda-b11434")
    args = container["args"]
    assert args[:2] == ["-m", "/models/gemma.gguf"]
    assert args[args.index("--device") + 1] == "CUDA0", "the first of its backend, since no other is visible"
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["readinessGates"] == [{"conditionType": "paddock.dev/verified"}]
    assert pod["metadata"]["ownerReferences"][0]["controller"] is True
    claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    bound = eventually(lambda: site.client.do("GET", site.path(claim, "persistentvolumeclaims")))
    assert bound["spec"]["volumeName"].startswith("paddock-models-")


def test_it_serves_once_proven_and_then_rests(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve()
    gate = next(one for one in pod["status"]["conditions"] if one["type"] == "paddock.dev/verified")
    assert (gate["status"], gate["reason"]) == ("True", "BuffersOnDevice")
    assert site.wait_for("Verified", "True", "BuffersOnDevice")["message"].count("0000:01:00.0")
    site.wait_for("Progressing", "False", "Complete")
    assert site.status()["readyReplicas"] == 1
    assert site.kubelet.log_reads[f"{site.namespace}/{pod['metadata']['name']}"] == 1, "the log is read once"
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 2)


def test_suspended_it_returns_its_device_and_resumes(site: Site) -> None:
    site.operator()
    site.node()
    site.serve()
    site.change("gemma", suspend=True)
    site.wait_for("Available", "False", "Suspended")
    eventually(lambda: not site.all_pods())
    eventually(lambda: not site.reservations())
    site.wait_for("Progressing", "False", "Suspended")
    assert site.gpu()["memory"]["reserved"] == "0Mi"
    site.change("gemma", suspend=False)
    site.wait_for("Available", "True", "Serving")
    assert len(site.reservations()) == 1


def test_scaled_by_the_subresource_it_spreads_over_devices(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 16), card(2, 16)])
    site.serve()
    scale = site.client.do("GET", f"{site.path('gemma')}/scale")
    assert scale["status"]["selector"] == site.status()["selector"]
    site.client.do("PATCH", f"{site.path('gemma')}/scale", {"spec": {"replicas": 3}})
    site.wait_for("Available", "True", "Serving")
    assert site.status()["readyReplicas"] == 3
    gpus = {one["devices"][0]["gpu"] for one in site.status()["placements"]}
    assert len(gpus) == 3, "each replica has a device of its own"
    first = site.pods()[0]["metadata"]["uid"]
    site.client.do("PATCH", f"{site.path('gemma')}/scale", {"spec": {"replicas": 1}})
    eventually(lambda: len(site.reservations()) == 1)
    site.wait_for("Progressing", "False", "Complete")
    assert [one["metadata"]["uid"] for one in site.pods()] == [first], "the first one stays as it is"


def test_deleted_it_leaves_nothing_behind(site: Site) -> None:
    site.operator()
    site.node()
    site.serve()
    assert site.client.get(site.path("gemma", "services"))
    site.client.delete(site.path("gemma"))
    eventually(lambda: not site.all_pods(), 20)
    eventually(lambda: not site.reservations(), 20)
    eventually(lambda: site.client.get(site.path("gemma", "services")) is None, 20)
    assert site.gpu()["memory"]["reserved"] == "0Mi"
    assert site.gpu()["deployments"] == []


def test_one_of_the_same_name_gets_a_pod_of_its_own(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(linger=0.5))
    old = site.serve()
    site.client.delete(site.path("gemma"))
    uid = site.apply("gemma")["metadata"]["uid"]
    site.wait_for("Available", "True", "Serving", seconds=25)
    (pod,) = site.pods()
    assert pod["metadata"]["uid"] != old["metadata"]["uid"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == uid
    site.settle()
    assert list(site.reservations()) == [pod["metadata"]["name"]]
    site.wait_for("Accepted", "True", "Valid")
    service = site.client.do("GET", site.path("gemma", "services"))
    assert service["metadata"]["ownerReferences"][0]["uid"] == uid


def test_spec_that_changes_while_it_waits_is_what_counts(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 1)])
    site.apply("gemma")
    assert "too small" in site.wait_for("Placed", "False", "InsufficientMemory")["message"]
    site.change("gemma", placement={"allowCPU": True})
    site.wait_for("Available", "True", "Serving")
    assert site.status()["placements"][0]["devices"] == []
    assert "on the CPU" in site.condition("Placed")["message"]
