"""Ways of serving: embeddings, keys, quantized caches, several slots, the processor, files in claims."""

import shutil
from collections.abc import Iterator

import pytest

from e2e import api, kit
from support.cluster import GTX_1060, apply, get, kubectl, models_folder
from support.gguf_writer import write_model

pytestmark = pytest.mark.e2e


def test_modes_caches_slots_keys_and_the_processor(namespace: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"api-key": "sesame"}}
    on_cpu = {"gpuLayers": 0}
    kit.put(
        namespace,
        secret,
        kit.deployment("embedding", source=kit.GEMMA, serving={"mode": "Embedding", "args": ["--pooling", "mean"]}),
        kit.deployment("keyed", serving={"apiKeySecretRef": {"name": "key"}}),
        kit.deployment("quantized", serving={"cacheTypeK": "q8_0", "cacheTypeV": "q8_0", "parallel": 4}),
        kit.deployment("on-cpu", source=kit.GEMMA, serving=on_cpu, placement={"allowCPU": True}),
        kit.deployment("off-cpu", serving=on_cpu),
    )
    found = kit.wait_available(namespace, "embedding", "keyed", "quantized", "on-cpu", seconds=120)
    check_embedding(kit.address_of(namespace, "embedding"))
    check_key(namespace)
    check_quantized(namespace, found["quantized"])
    check_cpu(namespace, found["on-cpu"])
    refused = kit.wait_condition(namespace, "off-cpu", "Placed", "False", "CpuNotAllowed")
    assert "needs placement.allowCPU to be true" in refused["message"]
    assert kit.pods(namespace, "off-cpu") == []


def check_embedding(address: str) -> None:
    """Ask for embeddings, which differ by text."""
    status, answer = kit.request(address, "/v1/embeddings", {"input": ["a paddock", "the sea"]})
    assert status == 200
    first, second = (one["embedding"] for one in answer["data"])
    assert len(first) == len(second) == 640
    assert first != second


def check_key(namespace: str) -> None:
    """Nobody without the key gets an answer; the command line finds it in the Secret."""
    address = kit.address_of(namespace, "keyed")
    assert kit.chat(address)[0] == 401
    assert kit.chat(address, key="wrong")[0] == 401
    assert kit.chat(address, key="sesame")[0] == 200
    assert "sesame" not in str(kit.pods(namespace, "keyed"))
    kit.run("paddock", "chat", "keyed", "-n", namespace, "--max-tokens", "4", "a b")


def check_quantized(namespace: str, one: api.Object) -> None:
    """Each of four slots has the whole context length, and its cache is of the type that was asked for."""
    status, slots = kit.request(kit.address_of(namespace, "quantized"), "/props")
    assert (status, slots["total_slots"]) == (200, 4)
    assert slots["default_generation_settings"]["n_ctx"] == 512
    log = kit.log_of(namespace, kit.device_of(one)["podName"])
    assert "K (q8_0)" in log
    assert "V (q8_0)" in log


def check_cpu(namespace: str, one: api.Object) -> None:
    """Assert that it is Verified without a device, and reserves none."""
    (placed,) = one["status"]["placements"]
    assert placed["devices"] == [] if "devices" in placed else True
    verified = kit.condition(one, "Verified")
    assert (verified["status"], verified["reason"]) == ("True", "BuffersOnDevice")
    assert "no device was opened" in verified["message"]
    assert all(not each["deployment"].endswith("/on-cpu") for each in kit.reservations(namespace).values())
    assert kit.chat(kit.address_of(namespace, "on-cpu"))[0] == 200


@pytest.fixture
def claim(namespace: str) -> Iterator[str]:
    """Give a claim that is bound to a folder of node1, with models in it."""
    folder = models_folder("node1") / "e2e-claim"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    kit.write_tiny(folder / "sub" / "tiny.gguf")
    (folder / "secret.gguf").unlink(missing_ok=True)
    write_model(folder / "secret.gguf").chmod(0o000)
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]}]}
    modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    name = f"{namespace}-models"
    volume = {
        **modes,
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": namespace, "name": "models"},
        "local": {"path": "/var/lib/paddock/models/e2e-claim"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
    }
    wanted = {**modes, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    kit.put(
        namespace,
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": wanted},
    )
    yield namespace
    kubectl("delete", "persistentvolume", name, "--wait=false")
    shutil.rmtree(folder)


def test_files_in_a_claim(claim: str) -> None:
    namespace = claim
    kit.put(
        namespace,
        kit.deployment("claimed", source="pvc://models/sub/tiny.gguf"),
        kit.deployment("secret", source="pvc://models/secret.gguf"),
        kit.deployment("missing", source="pvc://models/none.gguf"),
        kit.deployment("elsewhere", {"node": "node2", "index": 0}, source="pvc://models/sub/tiny.gguf"),
    )
    device = kit.device_of(kit.wait_available(namespace, "claimed", seconds=90)["claimed"])
    # The largest card of all is on the other node, where the volume is not.
    assert device["gpu"] == kit.GPU_4080
    (pod,) = kit.pods(namespace, "claimed")
    assert {"claimName": "models", "readOnly": True} in (
        one.get("persistentVolumeClaim") for one in pod["spec"]["volumes"]
    )
    assert kit.chat(kit.address_of(namespace, "claimed"))[0] == 200
    secret = kit.wait_condition(namespace, "secret", "Accepted", "False", "ModelUnreadable")
    assert "Permission denied" in secret["message"]
    kit.wait_condition(namespace, "missing", "Accepted", "False", "ModelNotFound")
    elsewhere = kit.wait_condition(namespace, "elsewhere", "Placed", "False", "NoDevice")
    assert "VolumeElsewhere" in elsewhere["message"]
    assert get("pvc", "models", "-n", namespace)["status"]["phase"] == "Bound"


def test_what_restricted_pod_security_asks_for_is_enforced_and_met(namespace: str) -> None:
    kit.put(namespace, kit.deployment("gemma", {"uuid": GTX_1060}))
    refused = kit.client_pod("root", "node1", "print()")
    refused["spec"]["securityContext"]["runAsUser"] = 0
    refused["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(AssertionError, match='violates PodSecurity "restricted'):
        kit.put(namespace, refused)
    kit.wait_available(namespace, "gemma")
    (pod,) = kit.pods(namespace)
    check_no_token(pod)
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
    agents = api.listed("pods", kit.SYSTEM, "app.kubernetes.io/component=node-agent")
    assert len(agents) == 2
    for agent in agents:
        check_no_token(agent)
    script = "import os, sys; sys.exit(os.path.exists('/var/run/secrets/kubernetes.io'))"
    kit.put(namespace, kit.client_pod("client", "node1", script))
    assert kit.finished(namespace, "client")[0] == "Succeeded"


def check_no_token(pod: api.Object) -> None:
    """Nothing in the pod can log in to the API server."""
    assert pod["spec"]["automountServiceAccountToken"] is False
    volumes = pod["spec"].get("volumes", [])
    assert not any(
        "serviceAccountToken" in source
        for volume in volumes
        for source in volume.get("projected", {}).get("sources", [])
    )
    (container,) = pod["spec"]["containers"]
    assert not any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
