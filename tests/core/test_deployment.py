"""ModelDeployments as the operator reads them, and the hashes that decide about roll-outs."""

from typing import Any

import pytest
from pydantic import create_model

from paddock.api import modeldeployment
from paddock.api.modeldeployment import ModelDeploymentSpec, ServingSpec
from paddock.core import deployment as module
from paddock.core.deployment import deployment_of, placement_hash, revision
from support.builders import body, deployment


def restarted(at: str) -> str:
    made = body()
    made["metadata"]["annotations"] = {"paddock.dev/restarted-at": at}
    return revision(deployment_of(made))


def test_an_object_is_read() -> None:
    made = body(serving={"contextLength": 4096})
    made["metadata"] |= {"generation": 7, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    made["status"] = {"observedGeneration": 6}
    found = deployment_of(made)
    assert (found.key, found.uid, found.generation, found.deleting) == ("default/gemma", "uid-1", 7, True)
    assert found.spec is not None
    assert found.spec.serving.context_length == 4096
    assert found.status == {"observedGeneration": 6}
    assert found.owner_reference["uid"] == "uid-1"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"replicas": -1}, "spec.replicas: Input should be greater than or equal to 0"),
        ({"serving": {"contextLength": 0}}, "spec.serving.contextLength: give a number of tokens from 1"),
        ({"model": {}}, "spec.model.source: Field required"),
        ({"placement": {"devices": [{"index": -1}]}}, "spec.placement.devices.0.index: Input should be greater"),
        ({"replicas": -1, "suspend": "perhaps"}, "(and 1 more problem)"),
        ({"placement": {"selector": {"minMemory": "1e1.5"}}}, "spec.placement.selector.minMemory"),
        ({"placement": {"preferences": [{"selector": {"maxMemory": "9" * 65 + "Mi"}}]}}, "selector.maxMemory"),
    ],
)
def test_a_spec_that_cannot_be_read_is_told_by_field(spec: dict[str, Any], problem: str) -> None:
    found = deployment(**spec)
    assert found.spec is None
    assert problem in found.problem
    assert "pydantic.dev" not in found.problem
    assert revision(found) == placement_hash(found) == ""


def test_an_object_without_spec_is_a_problem_and_no_crash() -> None:
    made = body()
    del made["spec"]
    assert deployment_of(made).problem == "spec.model: Field required"


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"suspend": True},
        {"priority": 7},
        {"placement": {"policy": "MostMemory"}},
        {"placement": {"allowCPU": True, "devices": [{"uuid": "GPU-1"}]}},
        {"serving": {"contextLength": 8192, "parallel": 1, "gpuLayers": "All", "args": []}},
        {"server": {"resources": {"requests": {}, "limits": {}}, "tolerations": []}},
        {"future": {"field": 1}},
        {"serving": {"future": True}},
    ],
)
def test_the_revision_stays(spec: dict[str, Any]) -> None:
    assert revision(deployment(**spec)) == revision(deployment())


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"source": "file:///models/other.gguf"}},
        {"serving": {"contextLength": 4096}},
        {"serving": {"gpuLayers": 0}},
        {"serving": {"args": ["--temp", "1"]}},
        {"serving": {"args": ["1", "--temp"]}},
        {"server": {"image": "registry.example/llama:1"}},
        {"server": {"resources": {"limits": {"memory": "8Gi"}}}},
        {"server": {"podLabels": {"team": "a"}}},
        {"server": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
        {"serving": {"apiKeySecretRef": {"name": "key"}}},
    ],
)
def test_the_revision_changes(spec: dict[str, Any]) -> None:
    assert revision(deployment(**spec)) != revision(deployment())


def test_a_restart_changes_the_revision_once() -> None:
    assert restarted("a") != restarted("b") != revision(deployment())
    assert restarted("a") == restarted("a")


def test_the_order_of_keys_changes_nothing() -> None:
    one = deployment(server={"podLabels": {"a": "1", "b": "2"}})
    other = deployment(server={"podLabels": {"b": "2", "a": "1"}})
    assert revision(one) == revision(other)


def test_a_new_field_with_a_default_restarts_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = create_model("ServingSpec", __base__=ServingSpec, some_new_field=(int, 3))
    spec = create_model("ModelDeploymentSpec", __base__=ModelDeploymentSpec, serving=(newer, newer()))
    before = deployment(serving={"contextLength": 4096})
    monkeypatch.setattr(module, "ModelDeploymentSpec", spec)
    after = deployment(serving={"contextLength": 4096})
    assert hasattr(after.spec.serving if after.spec else None, "some_new_field")
    assert revision(after) == revision(before)
    assert revision(deployment(serving={"contextLength": 4096, "someNewField": 4})) != revision(before)


def test_the_revision_of_a_plain_deployment_never_changes() -> None:
    """Fixed values: a new version of the operator that computes others restarts every server of every user."""
    assert revision(deployment()) == "7d6dbd375c"
    assert placement_hash(deployment()) == "44136fa355"
    full = deployment(
        serving={"contextLength": 4096, "cacheTypeK": "q8_0", "gpuLayers": 0, "apiKeySecretRef": {"name": "key"}},
        server={"resources": {"limits": {"memory": "8Gi"}}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        placement={"devices": [{"node": "node1", "pciId": "0000:01:00.0"}], "nodeSelector": {"zone": "a"}},
    )
    assert revision(full) == "90a45d26c3"
    assert placement_hash(full) == "61324c2e71"


@pytest.mark.parametrize(
    ("placement", "same"),
    [
        ({"policy": "MostMemory"}, True),
        ({"minTokensPerSecond": 20}, True),
        ({"replicaSpread": "Zone"}, True),
        ({"preferences": [{"weight": 5, "selector": {"names": ["*4080*"]}}]}, True),
        ({"selector": {"names": ["*4080*"]}}, False),
        ({"allowCPU": False, "devices": []}, True),
        ({"allowCPU": True}, False),
        ({"allowIntegrated": "Never"}, False),
        ({"nodeSelector": {"zone": "a"}}, False),
        ({"devices": [{"uuid": "GPU-1"}]}, False),
    ],
)
def test_the_placement_hash_tells_what_may_be_used_but_not_what_is_best(placement: dict[str, Any], same: bool) -> None:
    assert (placement_hash(deployment(placement=placement)) == placement_hash(deployment())) is same


def test_names_leave_room_for_what_pods_add() -> None:
    assert modeldeployment.MAX_NAME + len("-12345678-999") <= 63
