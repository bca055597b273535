"""Everything that can be wrong with a deployment's surroundings, each told by a condition."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from paddock.api.report import HeaderFault
from support.client import eventually, stays
from support.helm import NAMESPACE
from support.pretend_agent import card, summary
from support.pretend_kubelet import STRATEGIC, Behaviour
from support.site import VOLUMES

if TYPE_CHECKING:
    from support.site import Site


def test_pods_that_the_kubelet_refuses_are_made_again_with_growing_pauses(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(refused=2))
    began = time.monotonic()
    site.apply("gemma")
    site.wait_for("Available", "True", "Serving")
    assert time.monotonic() - began > 2.9, "one second, then two"
    (pod,) = site.pods()
    assert site.kubelet.created[f"{site.namespace}/{pod['metadata']['name']}"] == 3
    events = site.client.items(site.path("", "events"))
    assert any(one["reason"] == "AdmissionFailed" and "no healthy devices" in one["message"] for one in events)
    assert list(site.reservations()) == [pod["metadata"]["name"]]


def test_a_pod_that_a_quota_refuses_books_nothing(site: Site) -> None:
    site.operator()
    site.node()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    site.client.do("POST", site.path("", "resourcequotas"), quota)
    status = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    site.client.do("PATCH", site.path("none", "resourcequotas") + "/status", status)

    def refused() -> bool:
        answer = site.client.call(
            "POST",
            site.path("", "pods") + "?dryRun=All",
            {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}},
        )
        return answer.status == 403

    eventually(refused, what="the quota is in force")
    site.apply("gemma")
    mark = site.plane.audit_mark()
    assert "exceeded quota" in site.wait_for("Placed", "False", "PodRefused")["message"]
    eventually(lambda: site.reservations() == {})
    site.settle()
    tried = [
        one for one in site.plane.audit()[mark:] if one["verb"] == "create" and one["objectRef"]["resource"] == "pods"
    ]
    assert len(tried) == 1, [one["requestReceivedTimestamp"] for one in tried]
    site.client.delete(site.path("none", "resourcequotas"))
    eventually(lambda: not refused())
    site.change("gemma", serving={"parallel": 2})
    site.wait_for("Available", "True", "Serving")


def test_it_serves_where_restricted_pod_security_is_enforced(site: Site) -> None:
    site.operator()
    site.node()
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    site.client.do("PATCH", f"/api/v1/namespaces/{site.namespace}", labels)
    site.serve()


def test_a_service_of_somebody_else_is_left_alone(site: Site) -> None:
    site.operator()
    site.node()
    service = {"metadata": {"name": "gemma"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}}}
    made = site.client.do("POST", site.path("", "services"), service)
    site.apply("gemma")
    assert "gemma" in site.wait_for("Accepted", "False", "ServiceNameTaken")["message"]
    assert site.pods() == []
    assert site.reservations() == {}
    there = site.client.do("GET", site.path("gemma", "services"))
    assert there["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    site.client.delete(site.path("gemma", "services"))
    site.change("gemma", serving={"parallel": 2})
    site.wait_for("Available", "True", "Serving")


def test_a_service_that_somebody_deletes_is_made_again(site: Site) -> None:
    site.operator(resync_seconds=1)
    site.node()
    pod = site.serve()
    site.client.delete(site.path("gemma", "services"))
    eventually(lambda: site.client.get(site.path("gemma", "services")), what="a Service again")
    assert [one["metadata"]["uid"] for one in site.pods()] == [pod["metadata"]["uid"]]
    site.settle(quiet=2.5)


def test_a_deployment_deleted_without_its_pods_can_be_made_again(site: Site) -> None:
    site.operator()
    site.node()
    left = site.serve()
    site.client.call("DELETE", site.path("gemma"), {"propagationPolicy": "Orphan"})
    eventually(lambda: site.client.get(site.path("gemma")) is None, what="it is gone")
    assert [one["metadata"]["uid"] for one in site.pods()] == [left["metadata"]["uid"]]
    assert list(site.reservations()) == [left["metadata"]["name"]], "a server that runs keeps its memory"
    site.apply()
    site.wait_for("Available", "True", "Serving")
    (pod,) = site.pods()
    assert pod["metadata"]["uid"] != left["metadata"]["uid"]
    assert pod["metadata"]["ownerReferences"]
    assert list(site.reservations()) == [pod["metadata"]["name"]]
    assert site.client.get(site.path("gemma", "services")) is not None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ArgumentRefused --rpc": ({"serving": {"args": ["--rpc", "host:1"]}}, "--rpc"),
    "ArgumentRefused tools": ({"serving": {"args": ["--tools_runtime"]}}, "--tools"),
    "ImageRefused": ({"server": {"image": "docker.io/evil:latest"}}, "docker.io/evil:latest"),
    "SourceRefused": ({"model": {"source": "file:///etc/passwd"}}, "/models"),
    "ModelNotFound": ({"model": {"source": "file:///models/none.gguf"}}, "none.gguf"),
    "ModelTruncated": ({"model": {"source": "file:///models/short.gguf"}}, "short"),
    "NotGguf": ({"model": {"source": "file:///models/zip.gguf"}}, "PK"),
    "ModelUnreadable": ({"model": {"source": "file:///models/locked.gguf"}}, "65532"),
    "ClaimNotFound": ({"model": {"source": "pvc://none/x.gguf"}}, "none"),
    "CpuNotAllowed": ({"serving": {"gpuLayers": 0}}, "allowCPU"),
    "InsufficientMemory": ({"serving": {"contextLength": 16777216}}, "too small"),
    "NoNodeAgent": ({"placement": {"nodeSelector": {"zone": "x"}}}, "no node agent"),
    "DeviceNotFound": ({"placement": {"devices": [{"uuid": "GPU-not-there"}]}}, "GPU-not-there"),
}
"""By reason: a spec that is refused for it, and what the message must say."""


def test_what_cannot_be_served_is_told_and_books_nothing(site: Site) -> None:
    site.operator()
    headers = site.node().agent.headers
    headers["/models/short.gguf"] = HeaderFault(code="ModelTruncated", message="the file is short of 7 bytes")
    headers["/models/zip.gguf"] = HeaderFault(code="NotGguf", message="it begins with PK")
    headers["/models/locked.gguf"] = HeaderFault(code="ModelUnreadable", message="user 65532 may not read it")
    for number, (spec, _) in enumerate(REFUSED.values()):
        site.apply(f"m{number}", **spec)

    def told(name: str, reason: str, words: str) -> bool:
        return any(one["reason"] == reason and words in one["message"] for one in site.status(name)["conditions"])

    for number, (title, (_, words)) in enumerate(REFUSED.items()):
        name, reason = f"m{number}", title.partition(" ")[0]
        eventually(lambda name=name, reason=reason, words=words: told(name, reason, words), what=f"{reason}: {words}")  # type: ignore[misc]
        assert site.condition("Available", name)["status"] == "False"
    assert site.all_pods() == []
    assert site.reservations() == {}
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 1)


def claim(site: Site, node: str) -> None:
    """Make a claim whose volume is on one node."""
    volume = f"volume-{site.namespace}"[:60]
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    size = {"storage": "1Gi"}
    modes = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    spec = {
        "capacity": size,
        "local": {"path": "/data"},
        "claimRef": {"namespace": site.namespace, "name": "models"},
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        **modes,
    }
    site.client.do("POST", VOLUMES, {"metadata": {"name": volume}, "spec": spec})
    body = {"metadata": {"name": "models"}, "spec": {"volumeName": volume, "resources": {"requests": size}, **modes}}
    site.client.do("POST", site.path("", "persistentvolumeclaims"), body)


def test_a_claim_is_read_by_an_inspector_and_served_where_its_volume_is(site: Site) -> None:
    site.operator()
    site.node("node1", [card(0, 24)])
    site.node("node2", [card(0, 16)])
    claim(site, "node2")
    answer = json.dumps({"summary": summary().to_dict()})
    behaviour = site.kubelet.behave("gemma", Behaviour(summary=f"warm up\nPADDOCK-HEADER {answer}\n", up=False))
    site.apply("gemma", model={"source": "pvc://models/folder/x.gguf"})
    site.wait_for("Accepted", "Unknown", "ReadingHeader")
    site.apply("second", model={"source": "pvc://models/folder/x.gguf"})
    site.wait_for("Accepted", "Unknown", "ReadingHeader", "second")
    (inspector,) = site.all_pods()
    container = inspector["spec"]["containers"][0]
    assert container["image"] == "paddock-agent:test"
    assert container["command"][-2:] == ["/model-volume/folder/x.gguf", "/model-volume"]
    behaviour.up = True
    key = f"{site.namespace}/{inspector['metadata']['name']}"
    site.plane.background.loop.call_soon_threadsafe(site.kubelet.look, key)
    site.wait_for("Available", "True", "Serving")
    site.wait_for("Available", "True", "Serving", "second")
    (pod,) = site.pods("gemma")
    assert pod["spec"]["nodeName"] == "node2", "where the volume is, though node1 has the larger card"
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_an_inspector_that_finds_no_model_says_so(site: Site) -> None:
    site.operator()
    site.node()
    claim(site, "node1")
    fault = {"fault": {"code": "NotGguf", "message": "it begins with PK"}}
    site.kubelet.behave("gemma", Behaviour(summary=f"PADDOCK-HEADER {json.dumps(fault)}\n"))
    site.apply("gemma", model={"source": "pvc://models/x.gguf"})
    assert "PK" in site.wait_for("Accepted", "False", "NotGguf")["message"]
    eventually(lambda: not site.all_pods(), what="the inspector is removed")


def check_claims_survive_a_restart(site: Site) -> None:
    """See that a new operator keeps what servers have mounted, though the spec does not say any more what it is."""
    before = site.client.items(site.path("", "persistentvolumeclaims"))
    assert before
    site.plane.stop_operators()
    operator = site.operator()
    looks = "list /persistentvolumes"
    eventually(lambda: operator.calls().get(looks, 0) >= 1, 15, "it has looked for claims that nobody needs")
    site.settle()
    after = site.client.items(site.path("", "persistentvolumeclaims"))
    assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in before]
    assert not any("deletionTimestamp" in one["metadata"] for one in after)


def test_a_spec_of_a_later_version_is_told_and_its_server_goes_on(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve()
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/modeldeployments.paddock.dev"
    definition = site.client.do("GET", crd)
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/placement/properties/policy/enum"
    before = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    values = before["placement"]["properties"]["policy"]["enum"]
    patch = [{"op": "replace", "path": path, "value": [*values, "Cheapest"]}]
    site.client.do("PATCH", crd, patch, "application/json-patch+json")
    try:
        body = {"spec": {"placement": {"policy": "Cheapest"}}}
        content = "application/merge-patch+json"
        eventually(lambda: site.client.call("PATCH", site.path("gemma"), body, content).status == 200, 20)
        assert "policy" in site.wait_for("Accepted", "False", "InvalidSpec")["message"]
        mark = site.settle()
        stays(lambda: not site.plane.written(mark), 0.5)
        assert [one["metadata"]["uid"] for one in site.pods()] == [pod["metadata"]["uid"]]
        assert len(site.reservations()) == 1
        check_claims_survive_a_restart(site)
    finally:
        site.change("gemma", placement={"policy": "Auto"})
        site.client.do("PATCH", crd, [{"op": "replace", "path": path, "value": values}], "application/json-patch+json")
    site.wait_for("Accepted", "True", "Valid")


def test_a_namespace_that_ends_and_comes_back_serves_again(site: Site) -> None:
    site.operator()
    site.node()
    site.serve()
    # First the deployment: Kubernetes gives the pods of a namespace half a minute to end.
    site.client.delete(site.path("gemma"))
    eventually(lambda: not site.all_pods() and not site.reservations(), 20, "all is returned")
    path = f"/api/v1/namespaces/{site.namespace}"
    site.client.delete(path)
    eventually(lambda: site.client.get(path) is None, 20, "the namespace is gone")
    site.client.do("POST", "/api/v1/namespaces", {"metadata": {"name": site.namespace}})
    pod = site.serve()
    name = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]

    def bound() -> bool:
        there = site.client.do("GET", site.path(name, "persistentvolumeclaims"))
        phase: str = there["status"].get("phase", "")
        return phase == "Bound"

    eventually(bound, 20, "the new claim is bound to a new volume")


def test_conditions_of_nodes_are_patched_by_type(site: Site) -> None:
    site.operator()
    site.node()
    status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    site.client.do("PATCH", "/api/v1/nodes/node1/status", status, STRATEGIC)
    site.apply("gemma")
    assert "not Ready" in site.wait_for("Placed", "False", "NoDevice")["message"]
    status["status"]["conditions"][0]["status"] = "True"
    site.client.do("PATCH", "/api/v1/nodes/node1/status", status, STRATEGIC)
    site.wait_for("Available", "True", "Serving")


def test_the_agents_secret_is_made_anew_while_the_operator_runs(site: Site) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/paddock-agent"
    operator = site.operator(resync_seconds=1)
    before = site.client.get(path)
    assert before is not None
    site.client.delete(path)
    after = eventually(lambda: site.client.get(path), what="a new Secret")
    assert after is not None
    assert after["data"]["token"] != before["data"]["token"]
    eventually(lambda: operator.said("asked with the new key"))
