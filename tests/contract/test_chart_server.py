"""Helm installs, upgrades and uninstalls the chart on a real API server, which then grants what the chart says."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from support.apiserver import missing_programs
from support.helm import CHART, NAMESPACE, missing_program, named, render
from support.helm_site import Site, new_site
from support.manifests import deployment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MISSING = missing_programs() or missing_program()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

API = "/apis/paddock.dev/v1alpha1"
DEPLOYMENTS = f"{API}/namespaces/default/modeldeployments"
GPU_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpus.paddock.dev"
MERGE = "application/merge-patch+json"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:paddock-operator"
AGENT = f"system:serviceaccount:{NAMESPACE}:paddock-agent"
NVIDIA = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with new_site(tmp_path_factory.mktemp("site")) as made:
        yield made


def enforce(site: Site, level: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    assert site.server.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}", labels, MERGE).status == 200


# --- life of a release


def test_an_upgrade_brings_new_definitions_and_an_uninstall_keeps_them(tmp_path: Path) -> None:
    older = tmp_path / "chart"
    shutil.copytree(CHART, older)
    definition = older / "files" / "crds" / "paddock.dev_gpus.yaml"
    definition.write_text(definition.read_text().replace("    categories:\n    - paddock\n", ""))
    with new_site(tmp_path) as site:
        site.install(chart=older)
        site.server.wait("GET", DEPLOYMENTS)
        assert "categories" not in site.server.call("GET", GPU_CRD).body["spec"]["names"]
        assert site.server.call("POST", DEPLOYMENTS, deployment()).status == 201

        site.install(values={"operator": {"replicas": 2}})
        assert site.server.call("GET", GPU_CRD).body["spec"]["names"]["categories"] == ["paddock"]
        operator = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/paddock-operator"
        assert site.server.call("GET", operator).body["spec"]["replicas"] == 2

        assert site.helm("uninstall", "paddock").returncode == 0
        assert site.server.call("GET", operator).status == 404
        assert site.server.call("GET", f"{DEPLOYMENTS}/gemma").status == 200

        refused = site.helm("install", "blue", str(CHART))
        assert "invalid ownership metadata" in refused.stderr
        taken = site.helm("install", "blue", str(CHART), "--take-ownership")
        assert taken.returncode == 0, taken.stderr
        assert site.server.call("GET", f"{DEPLOYMENTS}/gemma").status == 200


# --- notes


def test_notes_warn_of_what_would_keep_agents_from_starting(site: Site) -> None:
    site.server.call("DELETE", "/apis/node.k8s.io/v1/runtimeclasses/nvidia")
    enforce(site, "restricted")
    notes = site.install()
    assert "WARNING: the cluster has no RuntimeClass nvidia" in notes
    assert f"WARNING: namespace {NAMESPACE} enforces Pod Security restricted" in notes
    assert "WARNING: `agents` is empty" in site.install(values={"agents": []})

    assert site.server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", NVIDIA).status == 201
    enforce(site, "privileged")
    notes = site.install()
    assert "WARNING" not in notes
    assert "put a GGUF file into /var/lib/paddock/models on a GPU node" in notes


def test_the_manifest_in_the_notes_works(site: Site) -> None:
    notes = site.install()
    site.server.wait("GET", DEPLOYMENTS)
    manifest = notes.partition("\nkubectl apply -f - <<END\n")[2].partition("\nEND\n")[0]
    path = f"{API}/namespaces/default/modeldeployments?dryRun=All&fieldValidation=Strict"
    answer = site.server.call("POST", path, manifest, "application/yaml")
    assert answer.status == 201, answer.message


# --- pods


@pytest.mark.parametrize(
    ("kind", "name", "values", "level", "refusal"),
    [
        ("Deployment", "paddock-operator", {}, "restricted", ""),
        ("DaemonSet", "paddock-agent-nvidia", {"modelRoots": [], "agent": {"hostPID": False}}, "restricted", ""),
        ("DaemonSet", "paddock-agent-nvidia", {"modelRoots": []}, "baseline", "hostPID=true"),
        ("DaemonSet", "paddock-agent-nvidia", {}, "baseline", "hostPath volumes"),
        ("DaemonSet", "paddock-agent-nvidia", {}, "privileged", ""),
    ],
)
def test_pods_meet_the_pod_security_that_is_promised(
    site: Site, kind: str, name: str, values: dict[str, Any], level: str, refusal: str
) -> None:
    site.server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", NVIDIA)
    enforce(site, level)
    template = named(render(values), kind, name)["spec"]["template"]
    pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "tried"}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict"
    answer = site.server.call("POST", path, pod)
    assert (answer.status, refusal in answer.message) == (403 if refusal else 201, True), answer.message


# --- rights


def test_rights_hold_everywhere_or_only_where_named(site: Site) -> None:
    watched = ("create", "pods"), ("list", "modeldeployments.paddock.dev"), ("get", "pods/log")

    def where(user: str = OPERATOR) -> set[str]:
        spaces = ("team-a", "team-b", "default")
        return {space for space in spaces if all(site.allowed(user, verb, what, space) for verb, what in watched)}

    site.install()
    assert where() == {"team-a", "team-b", "default"}
    site.install(values={"watchNamespaces": ["team-a"]})
    assert where() == {"team-a"}
    assert site.allowed(OPERATOR, "list", "pods", NAMESPACE)
    assert not site.allowed(OPERATOR, "list", "pods")
    assert site.allowed(OPERATOR, "watch", "modeldeployments.paddock.dev", NAMESPACE)
    assert not site.allowed(OPERATOR, "create", "pods", NAMESPACE)


def test_rights_are_no_wider_than_needed(site: Site) -> None:
    site.install()
    assert site.allowed(OPERATOR, "get", "secrets", NAMESPACE, "paddock-agent")
    assert site.allowed(OPERATOR, "update", "gpus/status.paddock.dev")
    assert site.allowed(OPERATOR, "update", "leases.coordination.k8s.io", NAMESPACE)
    for verb, resource, namespace, name in [
        ("get", "secrets", NAMESPACE, "other"),
        ("list", "secrets", NAMESPACE, ""),
        ("get", "secrets", "team-a", "paddock-agent"),
        ("update", "leases.coordination.k8s.io", "kube-system", ""),
        ("update", "modeldeployments.paddock.dev", "default", ""),
        ("create", "pods/exec", "default", ""),
        ("patch", "nodes/status", "", ""),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    ]:
        assert not site.allowed(OPERATOR, verb, resource, namespace, name), (verb, resource)
    for verb, resource in [("get", "secrets"), ("list", "pods"), ("get", "gpus.paddock.dev")]:
        assert not site.allowed(AGENT, verb, resource, NAMESPACE), (verb, resource)
