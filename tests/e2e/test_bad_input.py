"""Bad input: the API server refuses what its schema can see, a condition says the rest. All in one namespace."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e import api, kit
from support.cluster import apply, get, kubectl
from support.gguf_writer import write_model, write_not_gguf, write_truncated
from support.manifests import BAD

pytestmark = pytest.mark.e2e
FOLDER = "file:///models/e2e/bad"


class Case(NamedTuple):
    """A ModelDeployment that the schema takes, and the condition that must come."""

    manifest: api.Object
    kind: str
    reason: str
    message: str
    status: str = "False"


def of_source(source: str, reason: str, message: str) -> Case:
    """Give a case of spec.model.source."""
    return Case(kit.deployment("x", source=source), "Accepted", reason, message)


def of_args(*args: str, message: str) -> Case:
    """Give a case of spec.serving.args."""
    return Case(kit.deployment("x", serving={"args": list(args)}), "Accepted", "ArgumentRefused", message)


CASES: dict[str, Case] = {
    "missing": of_source(f"{FOLDER}/none.gguf", "ModelNotFound", "on none of 2 nodes: /models/e2e/bad/none.gguf"),
    "not-gguf": of_source(f"{FOLDER}/other.gguf", "NotGguf", "on node1: /models/e2e/bad/other.gguf"),
    "empty": of_source(f"{FOLDER}/empty.gguf", "NotGguf", "/models/e2e/bad/empty.gguf"),
    "truncated": of_source(f"{FOLDER}/truncated.gguf", "ModelTruncated", "/models/e2e/bad/truncated.gguf"),
    "directory": of_source(f"{FOLDER}/folder", "ModelUnreadable", "is a folder, not a file"),
    "pipe": of_source(f"{FOLDER}/pipe.gguf", "ModelUnreadable", "is not a regular file"),
    "unreadable": of_source(f"{FOLDER}/secret.gguf", "ModelUnreadable", "secret.gguf"),
    "outside": of_source("file:///etc/passwd", "SourceRefused", "/etc/passwd is not below a model root (/models)"),
    "beside": of_source("file:///models2/x.gguf", "SourceRefused", "is not below a model root (/models)"),
    "escape": of_source(f"{FOLDER}/escape.gguf", "SourceRefused", "is not below a model root (/models)"),
    "arg-unknown": of_args("--rpc", "10.0.0.1:50052", message="'--rpc' is not an allowed llama-server argument"),
    "arg-own-field": of_args("--ctx_size", "8", message="has a field of its own: use serving.contextLength"),
    "arg-no-value": of_args("--temp", "--tools", message="--temp needs a value, found '--tools'"),
    "arg-joined": of_args("--temp=1", message="write '--temp' and its value as two list items"),
    "arg-stray": of_args("hello", message="found 'hello' where an argument is expected"),
    "image": Case(
        kit.deployment("x", server={"image": "example.com/evil:1"}),
        "Accepted",
        "ImageRefused",
        "image example.com/evil:1 is not allowed; allowed patterns: ghcr.io/ggml-org/llama.cpp:server-b*",
    ),
    "no-claim": of_source("pvc://no-such-claim/x.gguf", "ClaimNotFound", "no-such-claim"),
    "service-taken": Case(
        kit.deployment("x"), "Accepted", "ServiceNameTaken", "Service service-taken exists in namespace"
    ),
    "context": Case(
        kit.deployment("x", source=kit.GEMMA, serving={"contextLength": 16_777_216, "parallel": 16}),
        "Placed",
        "InsufficientMemory",
        "GiB, has 95.59 GiB when empty",
    ),
    "no-device": Case(
        kit.deployment("x", {"uuid": "GPU-none"}), "Placed", "DeviceNotFound", "names uuid GPU-none, but none of the 4"
    ),
    "no-node": Case(
        kit.deployment("x", placement={"nodeSelector": {"disk": "fast"}}),
        "Accepted",
        "NoNodeAgent",
        "no node agent answers on the nodes where this could run",
        "Unknown",
    ),
    "no-cpu": Case(
        kit.deployment("x", serving={"gpuLayers": 0}),
        "Placed",
        "CpuNotAllowed",
        "serving.gpuLayers is 0, which needs placement.allowCPU to be true",
    ),
    "fails": Case(
        kit.deployment("x", source=f"{FOLDER}/none-can-load.gguf"),
        "Available",
        "ServerFailed",
        "error loading model: check_tensor_dims",
    ),
    "no-secret": Case(
        kit.deployment("x", serving={"apiKeySecretRef": {"name": "no-such-secret"}}),
        "Available",
        "ServerFailed",
        'secret "no-such-secret" not found',
    ),
    "no-image": Case(
        kit.deployment("x", server={"image": "ghcr.io/ggml-org/llama.cpp:server-cuda-b1"}),
        "Available",
        "ImagePullFailed",
        "ghcr.io/ggml-org/llama.cpp:server-cuda-b1",
    ),
    "no-room": Case(
        kit.deployment("x", server={"resources": {"requests": {"cpu": "500"}}}),
        "Available",
        "Unschedulable",
        "Insufficient cpu",
    ),
}


def write_files(node: str) -> None:
    """Put the bad files on a node."""
    folder = kit.models(node) / "bad"
    (folder / "folder").mkdir(parents=True, exist_ok=True)
    write_not_gguf(folder / "other.gguf")
    (folder / "empty.gguf").write_bytes(b"")
    write_truncated(folder / "truncated.gguf")
    write_model(folder / "none-can-load.gguf")
    (folder / "secret.gguf").unlink(missing_ok=True)
    write_model(folder / "secret.gguf").chmod(0o000)
    (folder / "escape.gguf").unlink(missing_ok=True)
    (folder / "escape.gguf").symlink_to("/etc/hostname")
    if not (folder / "pipe.gguf").exists():
        os.mkfifo(folder / "pipe.gguf", 0o644)


def test_a_condition_says_what_is_wrong(namespace: str) -> None:
    for node in kit.NODES:
        write_files(node)
    taken = {"ports": [{"port": 80}]}
    kit.put(namespace, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "service-taken"}, "spec": taken})
    kit.put(namespace, *({**case.manifest, "metadata": {"name": name}} for name, case in CASES.items()))
    problems = []
    for name, case in CASES.items():
        try:
            kit.wait_condition(namespace, name, case.kind, case.status, case.reason, message=case.message)
        except AssertionError as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)
    assert get("service", "service-taken", "-n", namespace)["metadata"].get("ownerReferences") is None
    running = {pod["metadata"]["labels"]["paddock.dev/model-deployment"] for pod in kit.pods(namespace)}
    assert running == {"fails", "no-secret", "no-image", "no-room"}, "only these are the pod's own problem"
    assert len(kit.reservations(namespace)) == len(running)


def test_a_quota_is_told_in_the_api_servers_words(namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": {"pods": 0}}}
    kit.put(namespace, quota)
    kit.run("kubectl", "wait", "quota/tight", "-n", namespace, "--for=jsonpath={.status.hard.pods}=0", "--timeout=30s")
    kit.put(namespace, kit.deployment("refused"))
    told = kit.wait_condition(namespace, "refused", "Placed", "False", "PodRefused")["message"]
    assert "exceeded quota: tight" in told
    assert not kit.reservations(namespace), "what was booked for the pod is given back"
    kubectl("delete", "quota", "tight", "-n", namespace)
    # The operator asks again every 30 seconds; a change of the spec makes it ask at once.
    kit.put(namespace, kit.deployment("refused", serving={"contextLength": 768}))
    kit.wait_available(namespace, "refused")


def refusal(namespace: str, name: str, folder: Path) -> str | None:
    """Apply a bad manifest; gives what is wrong with the answer."""
    manifest, message = BAD[name]
    file = folder / f"{name}.json"
    file.write_text(json.dumps({**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}))
    done = kit.run("kubectl", "apply", "-f", str(file), check=False)
    if done.returncode == 0:
        return f"{name}: was taken"
    return None if message in done.stderr else f"{name}: {message!r} is not in {done.stderr!r}"


def test_the_api_server_refuses_what_the_schema_sees(namespace: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        wrong = [each for each in pool.map(lambda name: refusal(namespace, name, tmp_path), BAD) if each]
    assert not wrong, "\n".join(wrong)
    assert not kit.mdeps(namespace)
    assert len(BAD) + len(CASES) >= 25


def test_nobody_but_the_operator_writes_gpus(namespace: str) -> None:
    """A user of a namespace who may edit it can't give himself a GPU."""
    as_user = ("--as=somebody", "--as-group=system:authenticated")
    apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
        }
    )

    def may(verb: str, *what: str) -> str:
        return kit.run("kubectl", "auth", "can-i", verb, *what, "-n", namespace, *as_user, check=False).stdout.strip()

    assert may("create", "modeldeployments.paddock.dev") == "yes"
    assert may("update", "modeldeployments.paddock.dev", "--subresource=scale") == "yes"
    assert may("update", "modeldeployments.paddock.dev", "--subresource=status") == "no"
    assert may("update", "gpus.paddock.dev") == "no"
    assert may("patch", "gpus.paddock.dev", "--subresource=status") == "no"
