"""Words that the end-to-end tests share: deployments as they are written, waited for and looked at."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from cluster.local import LocalCluster
from cluster.settings import REPOSITORY
from e2e.api import Object, found, listed
from support.cluster import apply, eventually, kubectl, models_folder
from support.gguf_writer import Model, Typed, Value, write_model

SYSTEM = "paddock-system"
OPERATOR = "app.kubernetes.io/component=operator"
NODES = ("node1", "node2")
GPU_1060, GPU_4080, GPU_6000 = "node1-0000-01-00-0", "node1-0000-02-00-0", "node2-0000-41-00-0"
GPU_INTEL = "node1-0000-00-02-0"
AGENT_IMAGE = "ghcr.io/paddock-dev/agent:0.1.0"
GEMMA, TINY = "file:///models/gemma.gguf", "file:///models/e2e/tiny.gguf"
MIB = 1024 * 1024
THIRD = {"contextLength": 114688, "batch": 8192, "ubatch": 8192}
"""Of the tiny model: 2.5 GiB on the device, or a step more. Two fit the GTX 1060."""
MOST = {"contextLength": 262144, "batch": 8192, "ubatch": 8192}
"""Of the tiny model: 5.25 GiB. One fits the GTX 1060."""
MIDDLE = {"contextLength": 393216, "batch": 8192, "ubatch": 8192}
"""Of the tiny model: 7.25 GiB, and 6.3 GiB of host memory. Too large for the GTX 1060."""
LARGE = {"contextLength": 524288, "batch": 8192, "ubatch": 8192}
"""Of the tiny model: 10 GiB. Too large for the GTX 1060, one fits the RTX 4080, one the integrated graphics."""


# --- model files


def models(node: str) -> Path:
    """Folder of a node in which the tests keep their own model files: file:///models/e2e there."""
    folder = models_folder(node) / "e2e"
    folder.mkdir(exist_ok=True)
    return folder


def boot(node: str) -> str:
    """Give a node another boot id, which its agent reads when it starts."""
    name = str(uuid.uuid4())
    file = models_folder(node) / ".boot-id"
    file.write_text(name + "\n")
    file.chmod(0o644)
    return name


def believe() -> None:
    """Have cards believed again of which servers were found elsewhere: after three of those a card gets nothing.

    For that their nodes get another boot id.
    """

    def doubted() -> set[str]:
        return {one["status"]["node"] for one in gpus().values() if one.get("status", {}).get("mismatches")}

    for node in doubted():
        boot(node)
        of_node = f"--field-selector=spec.nodeName={node}"
        kubectl("delete", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=node-agent", of_node)
    eventually("every card is believed", lambda: not doubted(), 90)


def write_tiny(path: Path, context: int = 2048, *, author: str = "tests", forward: int = 128) -> None:
    """Write a model of some hundred kilobytes that llama-server loads and talks nonsense with; each author's is new.

    context is what it says that it was trained with, in tokens; forward makes it larger: 1000 are 768 kB.
    """
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
    tokens += [f"word{number}" for number in range(288 - len(tokens))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (288 - 259)
    tokenizer: dict[str, Value] = {
        "general.author": author,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 288,
        "tokenizer.ggml.token_type": Typed(9, struct.pack("<IQ288i", 5, 288, *kinds)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    write_model(path, Model(vocabulary=288, head_width=64, context=context, forward=forward, extra=tokenizer)).chmod(
        0o644
    )


# --- objects


def named(kind: str, namespace: str | None, name: str) -> Object:
    """Give an object; AssertionError when there is none."""
    one = found(kind, namespace, name)
    assert one is not None, f"there is no {name} among the {kind} of {namespace}"
    return one


# --- deployments


def deployment(
    name: str,
    *devices: Object,
    source: str = TINY,
    serving: Object | None = None,
    placement: Object | None = None,
    server: Object | None = None,
    **spec: Any,
) -> Object:
    """Give a ModelDeployment of the tiny model that asks for little processor time."""
    where = {**({"devices": list(devices)} if devices else {}), **(placement or {})}
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source},
            "serving": {"contextLength": 512, "args": ["--no-warmup"], **(serving or {})},
            "placement": where,
            "server": {"resources": {"requests": {"cpu": "20m"}}, **(server or {})},
            **spec,
        },
    }


def put(namespace: str, *manifests: Object) -> None:
    """Apply objects in a namespace."""
    apply(*({**one, "metadata": {**one["metadata"], "namespace": namespace}} for one in manifests))


def mdep(namespace: str, name: str) -> Object:
    """Give a ModelDeployment; AssertionError when there is none."""
    return named("modeldeployments", namespace, name)


def mdeps(namespace: str) -> dict[str, Object]:
    """Give all ModelDeployments of a namespace by name."""
    return {one["metadata"]["name"]: one for one in listed("modeldeployments", namespace)}


def condition(one: Object, kind: str) -> Object:
    """Give a condition that is about the present generation; an empty one of status "" before."""
    for each in one.get("status", {}).get("conditions", []):
        if each["type"] == kind and each.get("observedGeneration") == one["metadata"]["generation"]:
            return dict(each)
    return {"type": kind, "status": "", "reason": "", "message": ""}


def wait_all(
    namespace: str, names: Collection[str], what: str, look: Callable[[Object], object], seconds: float = 120
) -> dict[str, Object]:
    """Wait until `look` holds for each of these deployments, and give them; on failure tell their conditions."""
    last: dict[str, Object] = {}

    def there() -> dict[str, Object] | None:
        last.update(mdeps(namespace))
        return {name: last[name] for name in names} if all(n in last and look(last[n]) for n in names) else None

    try:
        return eventually(what, there, seconds)
    except AssertionError as error:
        told = [
            f"{name}: {one['type']}={one['status']} {one['reason']} {one['message']}"
            for name in names
            if name not in last or not look(last[name])
            for one in last.get(name, {}).get("status", {}).get("conditions", [])
        ]
        pods = kubectl("get", "pods", "-n", namespace, "-o", "wide", check=False)
        raise AssertionError("\n".join([str(error), *told, pods])) from None


def wait_available(namespace: str, *names: str, seconds: float = 120) -> dict[str, Object]:
    """Wait until all wanted replicas of these deployments serve."""
    return wait_all(namespace, names, "Available", lambda one: condition(one, "Available")["status"] == "True", seconds)


def wait_condition(
    namespace: str,
    name: str,
    kind: str,
    status: str,
    reason: str | None = None,
    *,
    seconds: float = 120,
    message: str = "",
) -> Object:
    """Wait for a condition with a status, a reason and a part of its message, and give it."""

    def holds(one: Object) -> bool:
        there = condition(one, kind)
        return there["status"] == status and reason in (None, there["reason"]) and message in there["message"]

    what = f"{kind}={status} {reason or ''} {message!r}"
    return condition(wait_all(namespace, [name], what, holds, seconds)[name], kind)


def device_of(one: Object) -> Object:
    """Give the only device of the only replica."""
    (placed,) = one["status"]["placements"]
    (device,) = placed["devices"]
    return {**device, "node": placed["node"], "podName": placed["podName"]}


# --- pods, GPUs, requests


def pods(namespace: str, name: str | None = None) -> list[Object]:
    """Give the server pods of a namespace, or of one deployment, those that leave included."""
    selector = "app.kubernetes.io/component=model-server" + (f",paddock.dev/model-deployment={name}" if name else "")
    return listed("pods", namespace, selector)


def pod_ready(pod: Object) -> bool:
    """Tell whether a pod gets traffic."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def containers(namespace: str) -> dict[str, str]:
    """Give the container ids of server pods by pod name: they change when a server is restarted."""
    return {
        pod["metadata"]["name"]: one["containerID"]
        for pod in pods(namespace)
        for one in pod["status"].get("containerStatuses", ())
        if one["name"] == "server"
    }


def gpus() -> dict[str, Object]:
    """Give every GPU object by name."""
    return {one["metadata"]["name"]: one for one in listed("gpus")}


def gpu_ready(gpu: str) -> Object:
    """Give the Ready condition of a GPU."""
    (ready,) = (one for one in gpus()[gpu]["status"]["conditions"] if one["type"] == "Ready")
    return dict(ready)


def reservations(namespace: str, gpu: str | None = None) -> dict[str, Object]:
    """Give the reservations of a namespace by pod name, on one GPU or on all; a pod must not have two."""
    held: dict[str, Object] = {}
    for name, one in gpus().items():
        for each in one["status"].get("reservations", []):
            space, _, pod = each["pod"].partition("/")
            if space == namespace and gpu in (None, name):
                assert pod not in held, f"{pod} is booked twice"
                held[pod] = {**each, "gpu": name}
    return held


def mebibytes(text: str) -> int:
    """Read a memory quantity of a GPU object."""
    return int(text.removesuffix("Mi"))


def nothing_double_booked() -> None:
    """Assert that no GPU has more reserved than it has, and that its sum is right."""
    for name, one in gpus().items():
        memory, held = one["status"]["memory"], one["status"].get("reservations", [])
        total = sum(each["bytes"] for each in held) // MIB
        assert total == mebibytes(memory["reserved"]), name
        assert total <= mebibytes(memory["total"]), name


def log_of(namespace: str, pod: str) -> str:
    """Give a server's log."""
    return kubectl("logs", "-n", namespace, pod, "-c", "server")


def address_of(namespace: str, name: str) -> str:
    """Give the cluster IP of a Service with a Ready server, once it is answered there.

    The node's proxy learns of a Ready server a moment after everybody else.
    """
    address = str(named("services", namespace, name)["spec"]["clusterIP"])

    def taken() -> bool:
        try:
            socket.create_connection((address, 8080), timeout=5).close()
        except OSError:
            return False
        return True

    eventually(f"the Service of {name} takes connections", taken, 20)
    return address


def addresses(namespace: str, name: str) -> list[str]:
    """Give the addresses to which a Service sends requests."""
    slices = listed("endpointslices", namespace, f"kubernetes.io/service-name={name}")
    return [
        address
        for one in slices
        for endpoint in one.get("endpoints") or []
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    ]


def request(address: str, path: str, body: Object | None = None, key: str | None = None) -> tuple[int, Any]:
    """Ask a server on port 8080; gives HTTP status and JSON. OSError when nobody answers."""
    connection = http.client.HTTPConnection(address, 8080, timeout=20)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        text = json.dumps(body) if body is not None else None
        connection.request("POST" if body is not None else "GET", path, text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def chat(address: str, text: str = "a b", key: str | None = None) -> tuple[int, Any]:
    """Ask for a short chat completion."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return request(address, "/v1/chat/completions", body, key)


def client_pod(name: str, node: str, script: str) -> Object:
    """Give a restricted pod that runs a Python script on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": AGENT_IMAGE,
                    "command": ["python3", "-c", script],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def finished(namespace: str, name: str, seconds: float = 30) -> tuple[str, str]:
    """Wait until a pod ends; gives its phase and log."""

    def phase() -> str | None:
        there: str = named("pods", namespace, name)["status"]["phase"]
        return there if there in ("Succeeded", "Failed") else None

    ended = eventually(f"end of pod {name}", phase, seconds)
    return ended, kubectl("logs", "-n", namespace, name)


# --- programs


def run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program with the cluster's kubeconfig, kubectl and the command line in PATH."""
    cluster = LocalCluster()
    path = f"{cluster.programs.kubernetes}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path, "NO_COLOR": "1"}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=180, env=environment, cwd=REPOSITORY
    )
    assert done.returncode == 0 or not check, f"{' '.join(argv)}: {done.stderr or done.stdout}"
    return done
