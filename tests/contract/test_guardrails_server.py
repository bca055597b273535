"""The chart's guard rails, on a real API server: which pods they refuse, and which they let through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paddock.cli.main import run
from support.apiserver import missing_programs
from support.client import eventually
from support.helm import NAMESPACE, missing_program
from support.helm_site import Site, new_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.apiserver import Answer, ApiServer

MISSING = missing_programs() or missing_program()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

Object = dict[str, Any]
ON: Object = {"guardRails": {"enabled": True}}
UUID = "runtime.nvidia.com/gpu=GPU-4080b7e2-91c3-4f0d-a5d8-6c2b1e47f802"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID: Object = {"name": VISIBLE, "value": "void"}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NVIDIA: Object = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def pod(*env: Object, name: str = "tried", container: Object | None = None, **spec: Any) -> Object:
    one = {"name": "main", "image": "cuda:1", "env": list(env), **(container or {})}
    meta = {"name": name, "annotations": spec.pop("annotations", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [one], **spec}}


def visible(value: str) -> Object:
    return {"name": VISIBLE, "value": value}


def asks(count: str, resource: str = "nvidia.com/gpu") -> Object:
    return {"resources": {"limits": {resource: count}}}


def create(server: ApiServer, body: Object, namespace: str = "team-a") -> Answer:
    return server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with new_site(tmp_path_factory.mktemp("site")) as made:
        assert made.server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", NVIDIA).status == 201
        yield made


def install(site: Site, values: Object) -> None:
    """Install and wait until the policy is at work: the API server takes a moment."""
    site.install(values=values)
    eventually(lambda: create(site.server, pod(visible("all"))).status == 403, 60, "the policy holds")


@pytest.fixture
def guarded(site: Site) -> Site:
    """Give the server with the rails as they are by default."""
    install(site, ON)
    return site


NAME_DEVICES = {"mountPath": "/var/run/nvidia-container-devices/all", "name": "v"}
VOLUME = {"name": "v", "emptyDir": {}}
SECOND = {"name": "second", "image": "x"}
REFUSED: dict[str, tuple[Object, str]] = {
    "all cards": (pod(visible("all")), "may only be void"),
    "a card by its UUID": (pod(visible(UUID)), "may only be void"),
    "a card by its index": (pod(visible("0")), "may only be void"),
    "a value from elsewhere": (
        pod({"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}), "may only be void",
    ),
    "a value put together": (pod({"name": "A", "value": "all"}, visible("$(A)")), "may only be void"),
    "the last of two values": (pod(VOID, visible("all")), "may only be void"),
    "all cards beside one that is counted": (pod(visible("all"), container=asks("1")), "may only be void"),
    "an init container": (
        pod(initContainers=[{"name": "first", "image": "x", "env": [visible("all")]}]), "may only be void",
    ),
    "what an image brings": (pod(runtimeClassName="nvidia"), "must set"),
    "what the second image brings": (
        pod(runtimeClassName="nvidia") | {
            "spec": {
                "runtimeClassName": "nvidia",
                "containers": [{"name": "main", "image": "x", "env": [VOID]}, SECOND],
            }
        },
        "must set",
    ),
    "no card asked for": (pod(runtimeClassName="nvidia", container=asks("0")), "must set"),
    "environment from elsewhere": (
        pod(runtimeClassName="nvidia", container={**asks("1"), "envFrom": [{"configMapRef": {"name": "c"}}]}),
        "envFrom",
    ),
    "a CDI annotation": (pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}), "annotations"),
    "an NRI annotation": (pod(annotations={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}), "annotations"),
    "a mount": (pod(container={"volumeMounts": [NAME_DEVICES]}, volumes=[VOLUME]), "mounts"),
    "Paddock's own memory": (pod(container=asks("4", "gpu.paddock.dev/nv-1")), "Paddock's own"),
}  # fmt: skip
ALLOWED: dict[str, Object] = {
    "a pod that wants no GPU": pod({"name": "A", "value": "all"}, annotations={"team": "a"}),
    "one that says so": pod(VOID),
    "none, and nothing": pod(visible("none"), visible("")),
    "one that is counted": pod(container=asks("1")),
    "one that is counted, with the runtime": pod(runtimeClassName="nvidia", container=asks("1")),
    "a counted slice": pod(runtimeClassName="nvidia", container=asks("1", "nvidia.com/mig-1g.10gb")),
    "the runtime without a card": pod(VOID, runtimeClassName="nvidia"),
    "environment from elsewhere that cannot win": pod(
        VOID, runtimeClassName="nvidia", container={"envFrom": [{"configMapRef": {"name": "c"}}]}
    ),
    "another mount": pod(container={"volumeMounts": [{"mountPath": "/data", "name": "v"}]}, volumes=[VOLUME]),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_pods_that_take_cards_past_whoever_counts_are_refused(guarded: Site, body: Object, words: str) -> None:
    answer = create(guarded.server, body)
    assert answer.status == 403, answer
    assert words in answer.message
    assert "paddock-devices" in answer.message


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_other_pods_are_let_through(guarded: Site, body: Object) -> None:
    answer = create(guarded.server, body)
    assert answer.status == 201, answer


def test_the_operator_alone_may_name_cards(guarded: Site) -> None:
    operator = guarded.as_account(NAMESPACE, "paddock-operator")
    assert create(operator, pod(visible(UUID), runtimeClassName="nvidia")).status == 201
    stranger = guarded.as_account("team-a", "paddock-operator")
    guarded.server.call(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "stranger"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "paddock-operator", "namespace": "team-a"}],
        },
    )
    assert "may only be void" in create(stranger, pod(visible(UUID))).message


def test_namespaces_of_the_drivers_and_the_agents_are_exempt(guarded: Site) -> None:
    assert create(guarded.server, pod(visible("all")), "kube-system").status == 201
    assert create(guarded.server, pod(visible("all")), NAMESPACE).status == 201
    assert create(guarded.server, pod(visible("all")), "team-b").status == 403


def test_containers_and_annotations_that_come_later_are_looked_at(guarded: Site) -> None:
    """What the operator gave a pod stays as it is; only what is added counts."""
    operator = guarded.as_account(NAMESPACE, "paddock-operator")
    body = pod(visible(UUID), name="server", runtimeClassName="nvidia", annotations={"cdi.k8s.io/mine": "a"})
    pods = "/api/v1/namespaces/team-a/pods"
    assert operator.call("POST", pods, body).status == 201
    try:
        later = {"name": "debug", "image": "x", "targetContainerName": "main"}

        def add(container: Object) -> Answer:
            patch = {"spec": {"ephemeralContainers": [container]}}
            path = f"{pods}/server/ephemeralcontainers?dryRun=All"
            return guarded.server.call("PATCH", path, patch, "application/strategic-merge-patch+json")

        def annotate(name: str, value: str) -> Answer:
            patch = {"metadata": {"annotations": {name: value}}}
            return guarded.server.call("PATCH", f"{pods}/server?dryRun=All", patch, "application/merge-patch+json")

        assert add({**later, "env": [visible("all")]}).status == 403
        assert "must set" in add(later).message
        assert add({**later, "env": [VOID]}).status == 200
        assert annotate("cdi.k8s.io/more", "nvidia.com/gpu=all").status == 403
        assert annotate("cdi.k8s.io/mine", "nvidia.com/gpu=all").status == 403
        assert annotate("team", "a").status == 200
    finally:
        guarded.server.call("DELETE", f"{pods}/server?gracePeriodSeconds=0")


def test_it_can_be_narrowed_and_widened(site: Site) -> None:
    values: Object = {
        "guardRails": {
            "enabled": True,
            "namespaceSelector": {"matchExpressions": [{"key": "open", "operator": "DoesNotExist"}]},
            "exemptUsers": ["system:serviceaccount:team-a:trusted"],
            "variables": [VISIBLE, "SWARM_GPU"],
            "requireVoid": True,
        }
    }
    site.as_account("team-a", "trusted")
    install(site, values)
    eventually(lambda: "must set" in create(site.server, pod()).message, 60, "every pod must say so")
    assert create(site.server, pod(VOID)).status == 201
    assert create(site.server, pod(container=asks("1"))).status == 201
    assert create(site.server, pod(VOID, {"name": "SWARM_GPU", "value": "all"})).status == 403
    team_b = {"metadata": {"labels": {"open": "yes"}}}
    assert site.server.call("PATCH", "/api/v1/namespaces/team-b", team_b, "application/merge-patch+json").status == 200
    try:
        eventually(lambda: create(site.server, pod(visible("all")), "team-b").status == 201, 30, "team-b is left out")
    finally:
        closed = {"metadata": {"labels": {"open": None}}}
        site.server.call("PATCH", "/api/v1/namespaces/team-b", closed, "application/merge-patch+json")


def test_its_expressions_are_sound(guarded: Site) -> None:
    """An expression that fails to compile would refuse every pod; one that could fail, some."""
    policy = guarded.server.call("GET", f"{POLICIES}/paddock-devices").body
    assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings")


def test_without_the_value_there_is_no_policy(site: Site) -> None:
    site.install()
    assert site.server.call("GET", f"{POLICIES}/paddock-devices").status == 404
    eventually(lambda: create(site.server, pod(visible("all"))).status == 201, 30, "nothing holds any more")


def test_the_network_policies_are_taken(site: Site) -> None:
    monitoring = [{"namespaceSelector": {"matchLabels": {"team": "ops"}}}]
    servers = {"namespaces": ["team-a"], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "offline": True}
    site.install(values={"networkPolicy": {"enabled": True, "scrapers": monitoring, "servers": servers}})
    listed = site.server.call("GET", "/apis/networking.k8s.io/v1/networkpolicies").body["items"]
    names = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in listed}
    assert names == {(NAMESPACE, "paddock-agent"), (NAMESPACE, "paddock-operator"), ("team-a", "paddock-servers")}
    about_servers = next(one for one in listed if one["metadata"]["name"] == "paddock-servers")
    operator = next(one for one in listed if one["metadata"]["name"] == "paddock-operator")
    *_, of_ours = about_servers["spec"]["ingress"]
    assert of_ours["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "podSelector": operator["spec"]["podSelector"],
        }
    ], "the operator asks servers whether they are at work"
    site.install()


def test_the_doctor_asks_a_real_server(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install()

    def told() -> str:
        assert run(["doctor", "--kubeconfig", str(site.kubeconfig)]) == 1
        return capsys.readouterr().out

    text = told()
    assert "kinds          3 definitions, as paddock" in text
    assert "paddock-system/paddock-operator is not up" in text
    assert "the operator has all its rights" in text
    assert "this machine, the API server and the nodes agree" in text, "the API server told its time"
    role = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/paddock-operator"
    assert site.server.call("DELETE", role).status == 200
    eventually(
        lambda: "the operator may not: list modeldeployments.paddock.dev" in told(), 30, "the lost right is told"
    )
    site.install()
