"""`paddock doctor` reads what there is, and says what is wrong."""

import json
from functools import cache
from typing import Any

import pytest
import yaml

from cli.fake import NOW, FakeApi, Shell, node
from paddock import __version__
from paddock.api.crd import crds
from paddock.cli.problem import ApiError

JSON = dict[str, Any]
HOME = "paddock-system"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/paddock-operator"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STAMP = f"{NOW:%Y-%m-%dT%H:%M:%S.000000Z}"


def labels(component: str) -> JSON:
    return {
        "app.kubernetes.io/name": "paddock",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": __version__,
    }


def chart_pod(name: str, component: str, on: str, **status: Any) -> JSON:
    ready = {"type": "Ready", "status": "False" if status else "True"}
    return {
        "metadata": {"name": name, "namespace": HOME, "labels": labels(component)},
        "spec": {"nodeName": on, "containers": [{"name": component, "image": f"{component}:1"}]},
        "status": {"conditions": [ready], **status},
    }


@cache
def definitions() -> str:
    return json.dumps([yaml.load(text, yaml.CSafeLoader) for text in crds().values()])


@pytest.fixture
def installed(api: FakeApi) -> FakeApi:
    """Give a sound installation."""
    for one in json.loads(definitions()):
        one["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        api.objects[f"{DEFINITIONS}/{one['metadata']['name']}"] = one
    template = {
        "spec": {"containers": [{"name": "operator", "env": [{"name": "PADDOCK_MODEL_ROOTS", "value": "[{}]"}]}]}
    }
    meta = {"name": "paddock-operator", "namespace": HOME, "labels": labels("operator")}
    api.operators = [{"metadata": meta, "spec": {"replicas": 1, "template": template}, "status": {"readyReplicas": 1}}]
    agent = {"spec": {"runtimeClassName": "nvidia", "containers": []}}
    api.lists = {
        "/apis/apps/v1/daemonsets": [
            {
                "metadata": {"name": "paddock-agent-nvidia", "namespace": HOME, "labels": labels("node-agent")},
                "spec": {"template": agent},
                "status": {"desiredNumberScheduled": 2, "numberReady": 2},
            }
        ],
        f"/api/v1/namespaces/{HOME}/events": [],
        "/apis/node.k8s.io/v1/runtimeclasses": [{"metadata": {"name": "nvidia"}}],
        NODE_LEASES: [{"metadata": {"name": "node1"}, "spec": {"renewTime": STAMP}}],
    }
    lease = {"holderIdentity": "paddock-operator-x", "renewTime": STAMP, "leaseDurationSeconds": 15}
    api.objects[LEASE] = {"spec": lease}
    api.objects[f"/api/v1/namespaces/{HOME}"] = {"metadata": {"labels": {}}}
    api.pods += [
        chart_pod("paddock-operator-x", "operator", "node1"),
        chart_pod("agent-1", "node-agent", "node1"),
        chart_pod("agent-2", "node-agent", "node2"),
    ]
    return api


def test_a_sound_installation(shell: Shell, installed: FakeApi) -> None:
    status, text = shell.run("doctor")
    assert status == 0, text
    lines = text.splitlines()
    assert lines[-1] == "11 checks, all well."
    assert all(line.startswith("ok ") for line in lines[:-1])
    accounts = {one["user"] for one in installed.reviews}
    assert accounts == {f"system:serviceaccount:{HOME}:paddock-operator"}


def test_nothing_installed_is_told_and_not_a_crash(shell: Shell, api: FakeApi) -> None:
    api.failures["/apis/paddock.dev"] = ApiError(404, "NotFound", "the server could not find the requested resource")
    api.lists = {
        "/apis/apps/v1/daemonsets": [],
        "/apis/node.k8s.io/v1/runtimeclasses": [],
        NODE_LEASES: [],
    }
    api.pods = []
    status, text = shell.run("doctor")
    assert status == 1
    assert "the cluster does not know gpus.paddock.dev" in text
    assert "no operator is installed" in text


def test_what_is_wrong_has_status_1_and_a_remedy(shell: Shell, installed: FakeApi) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    installed.pods[-1] = chart_pod(
        "agent-2", "node-agent", "node2", containerStatuses=[{"image": "agent:1", "state": waiting}]
    )
    installed.lacking = ("list", "nodes")
    installed.nodes[0]["status"]["allocatable"] = {"cpu": "2", "nvidia.com/gpu": "3"}
    status, text = shell.run("doctor")
    assert status == 1
    assert "agent:1 cannot be pulled for paddock-system/agent-2: Back-off pulling image  -> check the name" in text
    assert "the operator may not: list nodes  -> helm upgrade" in text
    assert "node1: a vendor's device plugin offers 3 nvidia.com/gpu" in text
    found = json.loads(shell.run("doctor", "-o", "json", "--node", "node1")[1])
    assert found["state"] == "wrong"
    assert {one.get("node") for one in found["findings"]} == {None, "node1"}


def test_what_kubernetes_warned_of_is_the_reason(shell: Shell, installed: FakeApi) -> None:
    installed.pods[-1] = chart_pod("agent-2", "node-agent", "node2", phase="Pending")
    said = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
    installed.lists[f"/api/v1/namespaces/{HOME}/events"] = [
        {"involvedObject": {"name": "agent-2"}, "message": said, "lastTimestamp": "2026-03-01T11:00:00Z"},
    ]
    text = shell.run("doctor")[1]
    assert f"node2: agent-2 does not run: {said}" in text
    assert "install the container toolkit there" in text


def test_a_lower_right_checks_less_and_says_so(shell: Shell, installed: FakeApi) -> None:
    for path in ("/apis/apiextensions.k8s.io", "/api/v1/nodes", "/apis/authorization.k8s.io"):
        installed.failures[path] = ApiError(403, "Forbidden", "forbidden")
    status, text = shell.run("doctor")
    assert status == 0
    assert text.count("not checked: you may not read") == 3


def test_clocks_are_compared(shell: Shell, installed: FakeApi) -> None:
    installed.nodes = [node("node1"), node("node2")]
    installed.lists[NODE_LEASES] = [
        {"metadata": {"name": "node1"}, "spec": {"renewTime": "2026-03-01T12:00:40Z"}},
        {"metadata": {"name": "node2"}, "spec": {"renewTime": "2026-03-01T11:59:55Z"}},
    ]
    status, text = shell.run("doctor")
    assert status == 1
    assert "node1: its clock is 40 s ahead of the API server's" in text
    assert "node2: its clock" not in text


def test_older_definitions_are_noticed(shell: Shell, installed: FakeApi) -> None:
    schema = installed.objects[f"{DEFINITIONS}/gpus.paddock.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["quarantine"]
    assert "gpus.paddock.dev is older than this program: it drops spec.quarantine" in shell.run("doctor")[1]


def test_in_a_terminal_the_remedy_stands_below(shell: Shell, installed: FakeApi) -> None:
    installed.lacking = ("list", "nodes")
    lines = shell.run("doctor", width=100)[1].splitlines()
    (number,) = (n for n, line in enumerate(lines) if "may not: list nodes" in line)
    assert lines[number + 1].strip().startswith("-> helm upgrade")
    assert all(len(line) <= 100 for line in lines)
