"""Services, volumes of model roots, inspector pods."""

import pytest

from paddock.core.objects import (
    endpoint,
    inspector_name,
    inspector_pod,
    mounted_of,
    root_claim,
    root_claim_name,
    root_id,
    root_volume,
    service,
)
from paddock.core.pod import Mounted
from paddock.core.source import ClaimSource, FileSource, ModelRoot
from support.builders import deployment

ROOT = ModelRoot(path="/models", host_path="/var/lib/paddock/models")
MOVED = ModelRoot(path="/models", host_path="/srv/models")


def test_volume_and_claim_name_each_other() -> None:
    volume, claim = root_volume(ROOT, "node1", "team-a"), root_claim(ROOT, "node1", "team-a")
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    reference = volume["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("team-a", claim["metadata"]["name"])
    for field in ("accessModes", "storageClassName"):
        assert claim["spec"][field] == volume["spec"][field]
    assert claim["spec"]["resources"]["requests"]["storage"] == volume["spec"]["capacity"]["storage"]


def test_each_root_node_and_namespace_has_a_volume_of_its_own() -> None:
    names = {
        root_volume(root, node, namespace)["metadata"]["name"]
        for root in (ROOT, MOVED)
        for node in ("node1", "node2")
        for namespace in ("a", "b")
    }
    assert len(names) == 8
    assert all(len(name) <= 63 for name in names)
    assert root_claim_name(ROOT, "node1") != root_claim_name(ROOT, "node2")
    assert root_id(ROOT) != root_id(MOVED)


def test_a_volume_is_kept_when_its_claim_goes_and_stays_on_its_node() -> None:
    spec = root_volume(ROOT, "node1", "team-a", "node1.example")["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["node1.example"]
    assert spec["local"] == {"path": "/var/lib/paddock/models"}


def test_where_a_server_finds_its_file() -> None:
    claim = ClaimSource("weights", "llm/x.gguf")
    assert mounted_of(claim, None) == Mounted("weights", "/model-volume", "/model-volume/llm/x.gguf", 0)
    file = FileSource("/models/x.gguf", ROOT)
    assert mounted_of(file, "node1") == Mounted(root_claim_name(ROOT, "node1"), "/models", "/models/x.gguf", 0)
    with pytest.raises(AssertionError):
        mounted_of(file, None)


def test_the_service_has_the_deployments_name_and_owner() -> None:
    of = deployment("llama")
    made = service(of)
    assert made["metadata"]["name"] == "llama"
    assert made["metadata"]["ownerReferences"] == [of.owner_reference]
    assert endpoint(of) == "http://llama.default.svc:8080/v1"


def test_one_inspector_for_each_file_of_a_namespace() -> None:
    one = inspector_name("a", ClaimSource("weights", "x.gguf"))
    assert one == inspector_name("a", ClaimSource("weights", "x.gguf"))
    others = {
        inspector_name("b", ClaimSource("weights", "x.gguf")),
        inspector_name("a", ClaimSource("weightsx", ".gguf")),
        inspector_name("a", ClaimSource("weights", "y.gguf")),
    }
    assert len(others | {one}) == 4


def test_an_inspector_ends_by_itself_and_reads_exactly_the_file() -> None:
    source = ClaimSource("weights", "$(HOME)/x.gguf")
    spec = inspector_pod(deployment(), source, "image", "Always", 1000)["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] <= 300
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["containers"][0]["command"][-2:] == ["/model-volume/$$(HOME)/x.gguf", "/model-volume"]
