"""A real API server takes the CRDs as they are, and refuses bad ModelDeployments with messages that help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paddock.api.crd import KINDS, crds
from paddock.api.modeldeployment import ModelDeploymentSpec
from support.apiserver import ApiServer, api_server, missing_programs
from support.manifests import BAD, GOOD, deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.manifests import Bad, Manifest

pytestmark = pytest.mark.skipif(missing_programs() is not None, reason=missing_programs() or "")

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENTS = "/apis/paddock.dev/v1alpha1/namespaces/default/modeldeployments"
GPUS = "/apis/paddock.dev/v1alpha1/gpus"
POLICIES = GPUS.replace("gpus", "placementpolicies")
MERGE = "application/merge-patch+json"
SINCE = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        for text in crds().values():
            answer = running.call("POST", CRDS, text, "application/yaml")
            assert answer.status == 201, answer.message
        for path in (DEPLOYMENTS, GPUS, POLICIES):
            running.wait("GET", path)
        yield running


def test_the_schemas_are_structural_and_the_names_accepted(server: ApiServer) -> None:
    for kind in KINDS:
        conditions = server.call("GET", f"{CRDS}/{kind.plural}.paddock.dev").body["status"]["conditions"]
        states = {condition["type"]: condition["status"] for condition in conditions}
        assert states == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("manifest", GOOD.values(), ids=GOOD)
def test_good_manifests_are_taken(server: ApiServer, manifest: Manifest) -> None:
    answer = server.call("POST", f"{DEPLOYMENTS}?dryRun=All", manifest)
    assert answer.status == 201, answer.message


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_manifests_are_refused_with_a_message_that_helps(server: ApiServer, bad: Bad) -> None:
    answer = server.call("POST", f"{DEPLOYMENTS}?dryRun=All", bad.manifest)
    assert answer.status == 422, answer
    assert bad.message in answer.message


def test_strict_clients_hear_of_unknown_fields(server: ApiServer) -> None:
    answer = server.call("POST", f"{DEPLOYMENTS}?dryRun=All&fieldValidation=Strict", GOOD["unknown-field-is-dropped"])
    assert (answer.status, 'unknown field "spec.future"' in answer.message) == (400, True)


@pytest.mark.parametrize("manifest", GOOD.values(), ids=GOOD)
def test_the_server_fills_in_what_the_models_fill_in(server: ApiServer, manifest: Manifest) -> None:
    stored = server.call("POST", f"{DEPLOYMENTS}?dryRun=All", manifest).body["spec"]
    assert ModelDeploymentSpec.model_validate(stored) == ModelDeploymentSpec.model_validate(manifest["spec"])


def test_every_scalar_default_is_stored(server: ApiServer) -> None:
    stored = server.call("POST", f"{DEPLOYMENTS}?dryRun=All", deployment()).body["spec"]
    assert stored["serving"] | stored["placement"] == {
        "batch": 2048,
        "cacheTypeK": "f16",
        "cacheTypeV": "f16",
        "contextLength": 8192,
        "flashAttention": "Auto",
        "gpuLayers": "All",
        "mode": "Chat",
        "parallel": 1,
        "ubatch": 512,
        "allowCPU": False,
        "allowIntegrated": "Auto",
        "policy": "Auto",
        "replicaSpread": "Device",
        "sticky": False,
    }
    assert (stored["replicas"], stored["suspend"], stored["priority"]) == (1, False, 0)


def test_scale_reads_and_writes_the_fields_it_should(server: ApiServer) -> None:
    path = f"{DEPLOYMENTS}/scaled"
    server.call("POST", DEPLOYMENTS, deployment("scaled"))
    status = {"status": {"replicas": 2, "selector": "a=b"}}
    assert server.call("PATCH", f"{path}/status", status, MERGE).status == 200
    assert server.call("PATCH", f"{path}/scale", {"spec": {"replicas": 3}}, MERGE).status == 200
    scale = server.call("GET", f"{path}/scale").body
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "a=b"})
    assert server.call("GET", path).body["spec"]["replicas"] == 3
    assert (
        "should be less than or equal to 1000"
        in server.call("PATCH", f"{path}/scale", {"spec": {"replicas": 1001}}, MERGE).message
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ""),
        (
            {
                "namespaces": ["team-*", "default"],
                "defaultPolicy": "BestFit",
                "gpus": {"vendors": ["NVIDIA"], "gpuLabels": {"pool": "a"}},
                "maxGpuMemory": "48Gi",
                "budgets": [{"selector": {"names": ["*4090*"]}, "memory": "20Gi"}, {"memory": "1Gi"}],
                "maxPriority": 10,
            },
            "",
        ),
        ({"namespaces": ["Team"]}, "should match '^[-a-z0-9*?]+$'"),
        ({"maxGpuMemory": "all"}, "memory is a quantity like 20Gi"),
        ({"defaultPolicy": "Best"}, 'Unsupported value: "Best"'),
        ({"budgets": [{"selector": {}}]}, "spec.budgets[0].memory: Required value"),
    ],
)
def test_what_a_placement_policy_may_say(server: ApiServer, spec: dict[str, object], words: str) -> None:
    body = {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": "said"},
        "spec": spec,
    }
    answer = server.call("POST", f"{POLICIES}?dryRun=All", body)
    assert answer.status == (422 if words else 201), answer.message
    assert words in answer.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ""),
        ({"budget": "Auto", "reserve": "512Mi", "labels": {"team": "a"}}, ""),
        ({"budget": "Unlimited"}, ""),
        ({"budget": "20Gi"}, ""),
        ({"budget": "1.5Gi"}, ""),
        ({"budget": "much"}, "budget is Auto, Unlimited, or a quantity like 20Gi"),
        ({"budget": "-1Gi"}, "budget is Auto"),
        ({"reserve": "half"}, "reserve is a quantity like 512Mi"),
    ],
)
def test_what_an_owner_may_say_of_a_gpu(server: ApiServer, spec: dict[str, object], words: str) -> None:
    body = {"apiVersion": "paddock.dev/v1alpha1", "kind": "GPU", "metadata": {"name": "said"}, "spec": spec}
    answer = server.call("POST", f"{GPUS}?dryRun=All", body)
    assert answer.status == (422 if words else 201), answer.message
    assert words in answer.message
    if not words:
        assert answer.body["spec"]["budget"] == spec.get("budget", "Auto")


def test_the_table_of_kubectl_get_has_a_cell_for_every_column(server: ApiServer) -> None:
    server.call("POST", DEPLOYMENTS, deployment("shown"))
    server.call(
        "POST", GPUS, {"apiVersion": "paddock.dev/v1alpha1", "kind": "GPU", "metadata": {"name": "g"}, "spec": {}}
    )
    device = {"gpu": "g", "name": "CUDA1", "nameInPod": "CUDA0", "backend": "CUDA", "needBytes": 2**40}
    placement = {"replica": 0, "podName": "p", "node": "node1", "reason": "r", "since": SINCE, "devices": [device]}
    placement["contextLength"] = 8192
    placement["binding"] = {"binder": "RuntimeClass", "reason": "r"}
    conditions = [_condition(kind) for kind in ("Placed", "Verified", "Available")]
    progress = {"text": "42%, 118 MiB/s", "percent": 42}
    files = {"source": "s3://b/x.gguf", "architecture": "llama", "parameters": 1, "files": 1, "sizeBytes": 2}
    model = files | {"progress": progress}
    status = {"readyReplicas": 1, "placements": [placement], "conditions": conditions, "model": model}
    gpu = {
        "node": "node1",
        "index": 0,
        "name": "CUDA1",
        "description": "NVIDIA RTX",
        "type": "Discrete",
        "uuid": "GPU-a",
        "pciId": "0000:01:00.0",
        "driver": "570.1",
        "backends": ["CUDA"],
        "deployments": ["default/shown"],
        "usedBy": "default/shown",
        "memory": {"total": "12282Mi", "free": "12032Mi", "reserved": "256Mi", "foreign": "0Mi"},
        "conditions": [_condition("Ready")],
    }
    assert server.call("PATCH", f"{DEPLOYMENTS}/shown/status", {"status": status}, MERGE).status == 200
    assert server.call("PATCH", f"{GPUS}/g/status", {"status": gpu}, MERGE).status == 200
    assert _row(server, f"{DEPLOYMENTS}/shown")[1:7] == [1, 1, "CUDA1", "node1", "True", "True"]
    assert None not in _row(server, f"{DEPLOYMENTS}/shown")
    assert None not in _row(server, f"{GPUS}/g")


def _condition(kind: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": SINCE}


def _row(server: ApiServer, path: str) -> list[object]:
    answer = server.call("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    return list(answer.body["rows"][0]["cells"])
