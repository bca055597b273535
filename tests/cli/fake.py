"""An API server in memory, and a small fleet with deployments in every state that the command line tells apart."""

import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console

from paddock.api.vocabulary import Label
from paddock.cli.main import run
from paddock.cli.problem import ApiError
from paddock.cli.screen import Screen
from paddock.cli.target import Environment

JSON = dict[str, Any]
GROUP = "/apis/paddock.dev/v1alpha1"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MIB = 1024 * 1024
GTX, RTX, PRO = "gpu-1060a0c4", "gpu-4080b7e2", "gpu-6000c9f1"


def condition(type_: str, status: str, reason: str, message: str) -> JSON:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-01T11:00:00Z",
    }


def gpu(key: str, /, *, ready: bool = True, reservations: list[JSON] | None = None, **status: Any) -> JSON:
    held = reservations or []
    found = condition("Ready", "True", "Listed", "the node's agent lists it")
    if not ready:
        found = condition("Ready", "False", "AgentSilent", "the agent of node3 has been silent for 2 minutes")
    memory = status.pop("memory")
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "GPU",
        "metadata": {"name": key, "managedFields": [{"manager": "paddock"}]},
        "status": {
            **status,
            "memory": {**memory, "reserved": f"{sum(one['bytes'] for one in held) // MIB}Mi"},
            "reservations": held,
            "deployments": sorted({one["deployment"] for one in held}),
            "conditions": [found],
        },
    }


def reservation(namespace: str, name: str, pod: str, mib: int) -> JSON:
    return {
        "pod": f"{namespace}/{pod}",
        "deployment": f"{namespace}/{name}",
        "uid": f"uid-{name}",
        "bytes": mib * MIB,
        "since": "2026-03-01T11:00:00Z",
    }


def fleet() -> list[JSON]:
    """Give the GPUs: a workstation with two cards and a processor's graphics, and a server with one large card."""
    return [
        gpu(
            "node1-0000-00-02-0",
            node="node1",
            index=2,
            pciId="0000:00:02.0",
            name="Vulkan0",
            description="Intel(R) UHD Graphics 770 (ADL-S GT1)",
            backends=["Vulkan"],
            rawIndex=0,
            type="Integrated",
            memory={"total": "12033Mi", "free": "11776Mi"},
        ),
        gpu(
            GTX,
            node="node1",
            index=0,
            uuid="GPU-1060a0c4-5d1f-4b6e-8c2a-3f7e9d10b601",
            pciId="0000:01:00.0",
            name="CUDA0",
            description="NVIDIA GeForce GTX 1060 6GB",
            backends=["CUDA"],
            type="Discrete",
            memory={"total": "6144Mi", "free": "5888Mi"},
            driver="580.95.05",
            computeCapability="6.1",
            memoryBandwidth=192_192_000_000,
        ),
        gpu(
            RTX,
            node="node1",
            index=1,
            uuid="GPU-4080b7e2-91c3-4f0d-a5d8-6c2b1e47f802",
            pciId="0000:02:00.0",
            name="CUDA1",
            description="NVIDIA GeForce RTX 4080 Laptop GPU",
            backends=["CUDA", "Vulkan"],
            type="Discrete",
            memory={"total": "12282Mi", "free": "11776Mi"},
            driver="580.95.05",
            computeCapability="8.9",
            memoryBandwidth=432_048_000_000,
            bus={"pcie": {"generation": 4, "width": 8, "maxGeneration": 4, "maxWidth": 16}, "numaNode": 0},
        ),
        gpu(
            PRO,
            node="node2",
            index=0,
            uuid="GPU-6000c9f1-27ab-4e38-b0c6-8d5f3a92e103",
            pciId="0000:41:00.0",
            name="CUDA0",
            description="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            backends=["CUDA"],
            type="Discrete",
            memory={"total": "97887Mi", "free": "96256Mi"},
            driver="580.95.05",
            computeCapability="12.0",
            memoryBandwidth=1_792_128_000_000,
            reservations=[reservation("default", "gemma", "gemma-1a2b3c4d-0", 1024)],
        ),
    ]


def deployment(name: str, status: JSON | None = None, namespace: str = "default", **spec: Any) -> JSON:
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-03-01T10:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"model": {"source": "file:///models/gemma.gguf"}, **spec},
        "status": status or {},
    }


NEED = {
    "deviceBytes": 930 * MIB,
    "hostBytes": 480 * MIB,
    "weightsBytes": 279 * MIB,
    "kvCacheBytes": 45 * MIB,
    "computeBytes": 30 * MIB,
    "marginBytes": 576 * MIB,
    "source": "Estimate",
}
WHY = (
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition (0000:41:00.0) on node2: "
    "fastest of 3 devices that fit (policy Auto); needs 1 GiB of 94 GiB left"
)


def placement(name: str, number: int = 0, why: str = WHY, gpu_name: str = PRO) -> JSON:
    return {
        "replica": number,
        "podName": f"{name}-1a2b3c4d-{number}",
        "node": "node2",
        "devices": [
            {
                "gpu": gpu_name,
                "uuid": "GPU-6000c9f1-27ab-4e38-b0c6-8d5f3a92e103",
                "pciId": "0000:41:00.0",
                "name": "CUDA0",
                "nameInPod": "CUDA0",
                "backend": "CUDA",
                "needBytes": 1024 * MIB,
            }
        ],
        "reason": why,
        "since": "2026-03-01T11:57:00Z",
        "binding": {
            "binder": "RuntimeClass",
            "reason": "RuntimeClass nvidia gives the card by its UUID",
            "exactDevice": True,
        },
    }


def serving(name: str = "gemma", replicas: int = 1, namespace: str = "default", **spec: Any) -> JSON:
    """Give a deployment that serves and is proven."""
    proof = "NVIDIA RTX PRO 6000 (0000:41:00.0) holds 354 MiB: model 279 MiB, KV 45 MiB, compute 30 MiB"
    return deployment(
        name,
        {
            "observedGeneration": 1,
            "replicas": replicas,
            "readyReplicas": replicas,
            "endpoint": f"http://{name}.{namespace}.svc:8080/v1",
            "need": dict(NEED),
            "placements": [placement(name, number) for number in range(replicas)],
            "conditions": [
                condition("Accepted", "True", "Valid", "needs 930 MiB on the device"),
                condition("Placed", "True", "Placed", WHY),
                condition("Verified", "True", "BuffersOnDevice", proof),
                condition("Available", "True", "Serving", f"{replicas} of {replicas} replicas ready"),
                condition("Progressing", "False", "Complete", "what runs is what the spec asks for"),
            ],
        },
        namespace,
        replicas=replicas,
        **spec,
    )


def waiting(name: str = "large", gib: int = 95) -> JSON:
    """Give a deployment that waits for room."""
    message = (
        "0 of 4 devices fit: 3 ModelTooBig, 1 NoRoom. Nearest is NVIDIA RTX PRO 6000 Blackwell Workstation Edition "
        "(0000:41:00.0) on node2: needs 95 GiB, has 94 GiB left of 95.59 GiB (1 GiB for default/gemma), 1 GiB short"
    )
    return deployment(
        name,
        {
            "observedGeneration": 1,
            "replicas": 0,
            "readyReplicas": 0,
            "need": {**NEED, "deviceBytes": gib * 1024 * MIB, "weightsBytes": (gib - 1) * 1024 * MIB},
            "conditions": [
                condition("Accepted", "True", "Valid", f"needs {gib} GiB on the device"),
                condition("Placed", "False", "WaitingForDevice", message),
                condition("Verified", "Unknown", "AwaitingEvidence", "nothing runs"),
                condition("Available", "False", "WaitingForDevice", f"0 of 1 replicas ready; {message}"),
            ],
        },
    )


def node(name: str, *, ready: bool = True) -> JSON:
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def pod(name: str, number: int = 0, *, namespace: str = "default", ready: bool = True) -> JSON:
    return {
        "metadata": {
            "name": f"{name}-1a2b3c4d-{number}",
            "namespace": namespace,
            "labels": {Label.DEPLOYMENT: name, Label.COMPONENT: Label.SERVER},
            "annotations": {"paddock.dev/replica": str(number)},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


class FakeApi:
    """Holds objects by path; every path can be made to fail."""

    def __init__(self) -> None:
        self.gpus = fleet()
        self.deployments = [serving(), waiting()]
        self.nodes = [node("node1"), node("node2")]
        self.policies: list[JSON] = []
        self.pods = [pod("gemma")]
        self.secrets: dict[str, JSON] = {}
        self.operators: list[JSON] = []
        self.logs: dict[str, str] = {}
        self.failures: dict[str, ApiError] = {}
        self.answers: list[bytes | ApiError] = []
        self.asked: list[tuple[str, JSON, dict[str, str]]] = []
        self.patches: list[tuple[str, JSON]] = []
        self.log_calls: list[tuple[str, int | None, bool]] = []
        self.claims: list[JSON] = []
        self.created: list[JSON] = []
        self.deleted: list[str] = []
        self.says: dict[str, str] = {}
        """What a pod prints that is created with this claim."""
        self.lists: dict[str, list[JSON]] = {}
        """Further lists, and further objects, by path."""
        self.objects: dict[str, JSON] = {}
        self.reviews: list[JSON] = []
        """What was asked about rights; a word of `lacking` in it means no."""
        self.lacking: tuple[str, str] | None = None
        self.metrics: dict[str, list[str | ApiError]] = {}
        """Answers of servers to GET, one after the other, by path."""

    @asynccontextmanager
    async def connect(self, _kubeconfig: str | None, _context: str | None) -> AsyncIterator["FakeApi"]:
        yield self

    def _fail(self, path: str) -> None:
        for part, error in self.failures.items():
            if path.startswith(part):
                raise error

    async def get(self, path: str) -> JSON:
        self._fail(path)
        name = path.rsplit("/", 1)[1]
        if path in self.objects:
            return copy.deepcopy(self.objects[path])
        if "/secrets/" in path and name in self.secrets:
            return self.secrets[name]
        for one in self.deployments:
            meta = one["metadata"]
            if path == f"{GROUP}/namespaces/{meta['namespace']}/modeldeployments/{meta['name']}":
                return copy.deepcopy(one)
        for one in self.created:
            if path.endswith(f"/pods/{one['metadata']['name']}") and name not in self.deleted:
                return {**one, "status": {"phase": "Succeeded"}}
        kind = "secrets" if "/secrets/" in path else "modeldeployments.paddock.dev"
        raise ApiError(404, "NotFound", f'{kind} "{name}" not found')

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> list[JSON]:
        self._fail(path)
        if path.endswith("/modeldeployments"):
            found = [one for one in self.deployments if _inside(path, one)]
        elif path.endswith("/persistentvolumeclaims"):
            found = [one for one in self.claims if _inside(path, one)]
        elif path.endswith("/pods"):
            found = [one for one in self.pods if _inside(path, one) and _labelled(one, params or {})]
        else:
            known = {
                f"{GROUP}/gpus": self.gpus,
                f"{GROUP}/placementpolicies": self.policies,
                "/api/v1/nodes": self.nodes,
                **self.lists,
            }
            found = {**known, "/apis/apps/v1/deployments": self.operators}[path]
        return copy.deepcopy(found)

    async def patch(self, path: str, body: JSON) -> JSON:
        self._fail(path)
        self.patches.append((path, body))
        return {}

    async def create(self, path: str, body: JSON) -> JSON:
        self._fail(path)
        if body["kind"].endswith("Review"):
            return self._review(body)
        self.created.append(copy.deepcopy(body))
        claim = body["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        self.logs[body["metadata"]["name"]] = self.says.get(claim, "")
        return body

    def _review(self, body: JSON) -> JSON:
        if body["kind"] == "SelfSubjectReview":
            return {**body, "metadata": {"creationTimestamp": f"{NOW:%Y-%m-%dT%H:%M:%SZ}"}}
        asked = body["spec"]["resourceAttributes"]
        self.reviews.append(body["spec"])
        return {**body, "status": {"allowed": (asked["verb"], asked["resource"]) != self.lacking}}

    async def fetch(self, path: str, headers: Mapping[str, str], seconds: float) -> str:
        assert seconds > 0
        self._fail(path)
        self.asked.append((path, {}, dict(headers)))
        answers = self.metrics[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rsplit("/", 1)[1])

    async def log(
        self, namespace: str, pod: str, *, tail: int | None = None, previous: bool = False, container: str = "server"
    ) -> str:
        assert container == ("server" if pod not in [one["metadata"]["name"] for one in self.created] else "fetch")
        self._fail(f"/api/v1/namespaces/{namespace}/pods/{pod}/log")
        self.log_calls.append((pod, tail, previous))
        return self.logs.get(pod, "")

    async def follow(self, namespace: str, pod: str, *, tail: int | None = None) -> AsyncIterator[str]:
        for line in (await self.log(namespace, pod, tail=tail)).splitlines():
            yield line

    async def ask(self, path: str, body: JSON, headers: Mapping[str, str]) -> bytes:
        self.asked.append((path, copy.deepcopy(body), dict(headers)))
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def _inside(path: str, one: JSON) -> bool:
    return "/namespaces/" not in path or f"/namespaces/{one['metadata']['namespace']}/" in path


def _labelled(one: JSON, params: Mapping[str, str]) -> bool:
    wanted = dict(part.split("=", 1) for part in params.get("labelSelector", "").split(",") if part)
    labels: dict[str, str] = one["metadata"]["labels"]
    return wanted.items() <= labels.items()


def completion(text: str) -> bytes:
    """Give an answer as llama-server gives it."""
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": {}}).encode()


class Shell:
    """Runs commands against a fake, and keeps what they printed."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    def run(self, *arguments: str, width: int | None = None) -> tuple[int, str]:
        """Run a command in a terminal of that width, without one in a pipe; give status and standard output."""
        out = StringIO()
        console = Console(
            file=out,
            force_terminal=width is not None,
            width=width,
            color_system=None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        environment = Environment(
            connect=self.api.connect,
            namespace_of=lambda _kubeconfig, _context: "default",
            clock=lambda: NOW,
            screen=lambda: Screen(console),
        )
        return run(arguments, environment), out.getvalue()
