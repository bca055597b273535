"""The operator's surroundings for tests: a real API server and controllers, pretend nodes, and real operator processes.

Operators run as the chart's service account, with the chart's rights and no others, so that a missing right shows.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

from cluster.settings import REPOSITORY, Programs, cache_folder
from paddock.api.report import CachedModel
from support.apiserver import ApiServer, api_server
from support.client import JSON, Client, T, eventually
from support.helm import NAMESPACE, render
from support.operator_process import Operator
from support.pretend_agent import PretendAgent, summary
from support.pretend_kubelet import PretendKubelet

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from aiohttp import web

    from paddock.api.report import Fault, ListedDevice

STRATEGIC = "application/strategic-merge-patch+json"
API = "/apis/paddock.dev/v1alpha1"
GPUS = f"{API}/gpus"
ACCOUNT = "paddock-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
MODEL = "/models/gemma.gguf"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
CONTROLLERS = ",".join(
    f"{name}-controller"
    for name in (
        "garbage-collector",
        "namespace",
        "persistentvolume-binder",
        "persistentvolume-protection",
        "persistentvolumeclaim-protection",
    )
)


class Background:
    """An event loop in a thread of its own, in which the pretend nodes live."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 20) -> T:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine there without waiting."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Cancel everything and end the thread."""

        async def cancel() -> None:
            tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)

        self.call(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@dataclass
class PretendNode:
    """A Node object with an agent and a kubelet behind it."""

    name: str
    address: str
    agent: PretendAgent
    agent_pod: str
    logs: web.AppRunner


@dataclass
class Plane:
    """Everything: API server, controllers, nodes, operators."""

    server: ApiServer
    folder: Path
    client: Client
    background: Background
    kubelet: PretendKubelet
    agent_port: int
    network: str
    nodes: dict[str, PretendNode] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    _serial: int = 0

    # -- operators -------------------------------------------------------------------------------------------------

    @cached_property
    def kubeconfig(self) -> Path:
        """Credentials of the chart's service account."""
        return self.kubeconfig_for(ACCOUNT)

    def kubeconfig_for(self, account: str) -> Path:
        """Give a kubeconfig of a service account of the operator's namespace."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        token = self.client.do("POST", path, body)["status"]["token"]
        return write_kubeconfig(self.folder / f"{account}.kubeconfig", self.server, token)

    def operator(self, *, kubeconfig: Path | None = None, ready: bool = True, **settings: Any) -> Operator:
        """Start an operator; `settings` are its PADDOCK_ variables in lower case."""
        port = free_port()
        environment = self.environment(listen=f"127.0.0.1:{port}", **settings)
        made = Operator(environment | {"KUBECONFIG": str(kubeconfig or self.kubeconfig)}, port)
        self.operators.append(made)
        if ready:
            made.wait_until("ready:")
        return made

    def environment(self, **settings: Any) -> dict[str, str]:
        """Give an operator's PADDOCK_ variables."""
        values = {
            "namespace": NAMESPACE,
            "pod_name": f"operator-{self._names()}",
            "agent_port": self.agent_port,
            "agent_image": "paddock-agent:test",
            "model_roots": json.dumps([{"path": "/models", "hostPath": "/var/lib/paddock/models"}]),
            "leader_election": "false",
            "agent_ttl": 2,
            **settings,
        }
        return {f"PADDOCK_{name.upper()}": str(value) for name, value in values.items()}

    def _names(self) -> int:
        self._serial += 1
        return self._serial

    def stop_operators(self) -> None:
        """End every operator."""
        for one in self.operators:
            one.terminate()
        self.operators.clear()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def credentials(self) -> Path:
        """Write the Secret that the operator made to files, as the kubelet does for agents."""
        folder = self.folder / "agent"
        secret = eventually(lambda: self.client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/paddock-agent"), 20)
        assert secret is not None
        folder.mkdir(exist_ok=True)
        for name, value in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(value))
        return folder

    def node(
        self,
        name: str,
        devices: Sequence[ListedDevice],
        *,
        faults: Sequence[Fault] = (),
        labels: Mapping[str, str] | None = None,
        agent: bool = True,
        announced: bool = True,
        cached: Sequence[str] | None = None,
        **spec: Any,
    ) -> PretendNode:
        """Add a node with these devices; its agent has the model `MODEL`. Not `announced`: no Node object yet.

        `cached` are the keys of what is in the node's cache, if it has one.
        """
        self._serial += 1
        address = f"127.{self.network}.{self._serial // 250}.{self._serial % 250 + 1}"
        folder = self.credentials()
        self.kubelet.folder = folder
        made = PretendAgent(name, address, self.agent_port, folder)
        made.headers[MODEL] = summary()
        made.cache = None if cached is None else [CachedModel(key=key, bytes=1) for key in cached]

        async def start() -> web.AppRunner:
            made.report(devices, faults)
            if agent:
                await made.start()
            return await self.kubelet.serve_logs(address)

        if announced:
            self.announce(name, address, labels, spec)
        logs = self.background.call(start())
        self.kubelet.nodes[name] = address
        node = PretendNode(name, address, made, f"paddock-agent-{self._serial}", logs)
        self.nodes[name] = node
        self._create_agent_pod(node)
        return node

    def announce(
        self, name: str, address: str, labels: Mapping[str, str] | None = None, spec: JSON | None = None
    ) -> None:
        """Create the Node object."""
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec or {}}
        self.client.do("POST", "/api/v1/nodes", body)
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
            "nodeInfo": {"architecture": "amd64"},
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "2000"},
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "2000"},
        }
        self.client.do("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC)

    def _create_agent_pod(self, node: PretendNode) -> None:
        labels = {"app.kubernetes.io/component": "node-agent", "app.kubernetes.io/name": "paddock"}
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        spec = {"nodeName": node.name, "containers": [{"name": "agent", "image": "x"}]}
        meta = {"name": node.agent_pod, "labels": labels}
        self.client.do("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        status = {"phase": "Running", "podIP": node.address, "podIPs": [{"ip": node.address}]}
        self.client.do("PATCH", f"{pods}/{node.agent_pod}/status", {"status": status}, STRATEGIC)

    def report(self, node: str, devices: Sequence[ListedDevice], faults: Sequence[Fault] = (), **more: Any) -> None:
        """Have a node's agent report something else; `more` are further fields of the report."""

        async def post() -> None:
            self.nodes[node].agent.report(devices, faults, **more)

        self.background.call(post())

    def cache(self, node: str, *keys: str) -> None:
        """Have a node's agent report that its cache holds these contents."""

        async def post() -> None:
            agent = self.nodes[node].agent
            agent.cache = [CachedModel(key=key, bytes=1) for key in keys]
            agent.report(agent.board.posting.report.devices if agent.board.posting is not None else [])

        self.background.call(post())

    def silence(self, node: str) -> None:
        """Have an agent answer no more."""
        self.background.call(self.nodes[node].agent.stop())

    def wake(self, node: str) -> None:
        """Have an agent answer again."""
        self.background.call(self.nodes[node].agent.start())

    def remove_node(self, name: str) -> None:
        """Remove a node with all that runs on it."""
        node = self.nodes.pop(name)
        self.client.delete(f"/api/v1/nodes/{name}")
        self.client.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{node.agent_pod}", gracePeriodSeconds=0)
        self.kubelet.nodes.pop(name, None)
        self.background.call(node.agent.stop())
        self.background.call(node.logs.cleanup())

    # -- the audit log ---------------------------------------------------------------------------------------------

    def audit(self) -> list[JSON]:
        """Give every request of the operators so far, as the API server has seen them."""
        text = (self.folder / "audit.log").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def written(self, since: int = 0) -> Counter[str]:
        """Count the operators' successful writes since a mark (`audit_mark`), Leases and Events aside."""
        events = self.audit()[since:]
        return Counter(
            f"{one['verb']} {resource_of(one)}"
            for one in events
            if one["verb"] not in ("get", "list", "watch")
            and one["objectRef"]["resource"] not in ("leases", "events")
            and one["responseStatus"]["code"] < 400
        )

    def audit_mark(self) -> int:
        """Give where the audit log is now."""
        return len(self.audit())


def resource_of(event: JSON) -> str:
    """Give `group/resource[/subresource]` of an audit event."""
    reference = event["objectRef"]
    subresource = f"/{reference['subresource']}" if reference.get("subresource") else ""
    return f"{reference.get('apiGroup', '')}/{reference['resource']}{subresource}"


def free_port() -> int:
    """Give a port that is free on every loopback address now."""
    import socket  # noqa: PLC0415

    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))  # noqa: S104
        port: int = one.getsockname()[1]
        return port


def write_kubeconfig(path: Path, server: ApiServer, token: str) -> Path:
    """Write a kubeconfig for a token."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.certificate)}}
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.touch(0o600)
    path.write_text(json.dumps(config))
    return path


def _audit_policy(folder: Path) -> list[str]:
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}, {"level": "None"}],
    }
    (folder / "audit.yaml").write_text(json.dumps(policy))
    (folder / "audit.log").touch()
    return [f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}"]


@contextlib.contextmanager
def _controllers(server: ApiServer, folder: Path) -> Iterator[None]:
    kubeconfig = write_kubeconfig(folder / "admin.kubeconfig", server, server.token)
    command = [
        str(Programs(cache_folder()).kubernetes / "kube-controller-manager"),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={CONTROLLERS}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--pvclaimbinder-sync-period=2s",
        f"--flex-volume-plugin-dir={folder / 'volume-plugins'}",
    ]
    with (folder / "controllers.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


def _install(server: ApiServer, values: JSON | None = None) -> None:
    """Create namespaces, CRDs, RuntimeClass and the chart's rights."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in sorted((REPOSITORY / "crds").glob("*.yaml")):
        assert server.call("POST", crds, yaml.safe_load(file.read_text())).status == 201
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert server.call("POST", "/api/v1/namespaces", namespace).status == 201
    nvidia = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    assert server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", nvidia | {"handler": "nvidia"}).status == 201
    grant(server, render(values))
    server.wait("GET", GPUS)
    server.wait("GET", f"{API}/modeldeployments")


def grant(server: ApiServer, objects: Sequence[JSON]) -> None:
    """Create the chart's service accounts, roles and bindings."""
    for one in objects:
        if one["kind"] not in RIGHTS:
            continue
        kind = one["kind"].lower() + "s"
        space = one["metadata"].get("namespace")
        where = f"/namespaces/{space}" if space else ""
        group = "/api/v1" if kind == "serviceaccounts" else "/apis/rbac.authorization.k8s.io/v1"
        answer = server.call("POST", f"{group}{where}/{kind}", one)
        assert answer.status in (201, 409), answer


@contextlib.contextmanager
def plane(folder: Path, *, audit: bool = True) -> Iterator[Plane]:
    """Start everything but nodes and operators, until the block ends."""
    arguments = _audit_policy(folder) if audit else []
    # Each deployment has a Service, and each of these an address.
    arguments.append("--service-cluster-ip-range=10.0.0.0/16")
    with api_server(folder, *arguments) as server:
        _install(server)
        with _controllers(server, folder):
            background, client = Background(), Client(server)
            kubelet = PretendKubelet(server.url, server.token, free_port(), folder)
            network = str(random.randrange(2, 250))  # noqa: S311 no secret
            made = Plane(server, folder, client, background, kubelet, free_port(), network)
            background.start(kubelet.run())
            try:
                yield made
            finally:
                made.stop_operators()
                for name in list(made.nodes):
                    made.remove_node(name)
                background.close()
                client.close()
