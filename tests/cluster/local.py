"""The local cluster as a whole: up, down, what it is doing, one component or node ended and started again."""

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster import host, models
from cluster.control_plane import ControlPlane
from cluster.images import Images
from cluster.node import NodeRunner
from cluster.processes import ClusterError, Processes, wait_until
from cluster.say import say
from cluster.settings import HERE, Node, Programs, cache_folder, nodes_of, state_folder

_RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}

NO_PLUGIN = "nvidia.com/gpu.deploy.device-plugin=false"
"""Label by which GPU Operator keeps NVIDIA's device plugin off a node."""


class LocalCluster:
    """The one cluster of a state folder. Every method may be called whatever runs already."""

    def __init__(self, state: Path | None = None, cache: Path | None = None) -> None:
        self.state = state or state_folder()
        self.programs = Programs(cache or cache_folder())
        self.processes = Processes(self.state)
        self.control_plane = ControlPlane(self.state, self.programs, self.processes)

    @property
    def kubeconfig(self) -> Path:
        """Credentials of an administrator."""
        return self.control_plane.kubeconfig

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second run of this tool out meanwhile."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def node(self, name: str) -> NodeRunner:
        """Return the runner of the node called `name`; ClusterError when there is none."""
        for node in nodes_of(self.state):
            if node.name == name:
                return NodeRunner(node, self.programs, self.processes)
        raise ClusterError(f"no node {name}; there are: {', '.join(self.node_names()) or 'none'}")

    def node_names(self) -> list[str]:
        """Return the names of the nodes that were started."""
        return [node.name for node in nodes_of(self.state)]

    def kubectl(self, *argv: str, check: bool = True) -> str:
        """Run kubectl as an administrator and return what it printed."""
        return host.run(self.programs.kubernetes / "kubectl", "--kubeconfig", self.kubeconfig, *argv, check=check)

    def build_programs(self) -> None:
        """Install packages and build the programs, both only when they are missing."""
        for step in ([HERE / "prerequisites.sh"], [HERE / "build.sh", "etcd", "kubernetes", "containerd"]):
            host.run_aloud(*step)

    def up(self, nodes: int) -> None:
        """Start the control plane and `nodes` nodes, and wait until all are Ready."""
        with self.locked():
            began = time.monotonic()
            for name in self.node_names():
                self.node(name).end_if_outdated()
            self.control_plane.end_if_outdated()
            if self.healthy(nodes):
                self._keep_plugins_off()
                return
            if self.processes.names() and not host.members():
                say("the cluster was cut off: starting afresh")
                self._clear()
            say(f"starting the control plane and {nodes} nodes (about 15 s)")
            host.borrow(self.state)
            host.connect_control_plane()
            self.control_plane.start()
            runners = [
                NodeRunner(Node(number, self.state), self.programs, self.processes) for number in range(1, nodes + 1)
            ]
            for runner in runners:
                runner.start()
            self._wait_for_nodes([runner.node.name for runner in runners])
            self._keep_plugins_off()
            self._apply(_RUNTIME_CLASS)
            say(f"{nodes} nodes Ready after {time.monotonic() - began:.1f} s")

    def _keep_plugins_off(self) -> None:
        """Say of every node that a vendor's device plugin which ran in a test is not awaited back."""
        self.kubectl("label", "nodes", "--all", "--overwrite", NO_PLUGIN)

    def load_images(self, profile: str) -> None:
        """Build images and model where their inputs changed, and give every node what it lacks."""
        with self.locked():
            runners = [self.node(name) for name in self.node_names()]
            Images(self.programs, profile).load(runners)
            models.give(self.programs.cache, runners)

    def healthy(self, nodes: int) -> bool:
        """Tell whether everything runs, with at least `nodes` nodes that are Ready."""
        if not self.kubeconfig.exists() or not self.control_plane.ready():
            return False
        names = self.node_names()
        parts = ("etcd", "kube-controller-manager", "kube-scheduler", "kube-proxy")
        running = all(self.processes.pid(part) for part in parts) and all(self.node(name).running() for name in names)
        return running and len(names) >= nodes and self._ready_nodes() >= set(names)

    def down(self) -> None:
        """End everything, and remove every trace but the cache."""
        with self.locked():
            self._clear()
        shutil.rmtree(self.state)

    def stop_node(self, name: str, *, with_pods: bool) -> None:
        """End kubelet and containerd of a node."""
        with self.locked():
            self.node(name).stop(with_pods=with_pods)

    def start_node(self, name: str) -> None:
        """Start a node that was stopped, and wait until it is Ready."""
        with self.locked():
            self.node(name).start()
            self._wait_for_nodes([name])

    def wait_ready(self) -> None:
        """Wait until the API server is ready and the nodes that run are, too."""
        wait_until("API server ready", self.control_plane.ready, 60)
        names = {name for name in self.node_names() if self.node(name).running()}
        for name in names:
            self.node(name).wait_healthy()
        wait_until("nodes Ready", lambda: self._ready_nodes() >= names, 90)

    def status(self) -> list[tuple[str, str]]:
        """Return (program, "pid N" or "down") for every program."""
        return [
            (name, f"pid {pid}" if (pid := self.processes.pid(name)) else "down") for name in self.processes.names()
        ]

    def _clear(self) -> None:
        nodes = nodes_of(self.state)
        host.end_members()
        host.remove_cgroups()
        host.disconnect(nodes)
        host.give_back(self.state)
        for each in self.state.iterdir():
            if each.name != "lock":
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def _wait_for_nodes(self, names: list[str]) -> None:
        for name in names:
            self.node(name).wait_healthy()

        def registered() -> bool:
            return bool(self.kubectl("get", "node", names[0], "-o", "name", check=False))

        wait_until(f"registration of {names[0]} (see {self.state}/nodes/{names[0]}/log)", registered, 60)
        self.control_plane.start_proxy("node1")
        wait_until(
            f"{', '.join(names)} Ready (see {self.state}/nodes/*/log)", lambda: self._ready_nodes() >= set(names), 90
        )

    def _ready_nodes(self) -> set[str]:
        listed = json.loads(self.kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')["items"]
        return {
            node["metadata"]["name"]
            for node in listed
            if any(
                each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", [])
            )
        }

    def _apply(self, *manifests: Mapping[str, object]) -> None:
        file = self.state / "apply.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
        self.kubectl("apply", "-f", str(file))
