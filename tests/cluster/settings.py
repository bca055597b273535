"""Where the local cluster keeps things, and which versions and addresses it uses.

Two folders: the cache (built programs and images; survives the cluster) and the state (one running cluster; goes with
it).
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
POD_NETWORK = "10.244.0.0/16"
CONTROL_PLANE_IP = "10.244.255.1"
"""Where pods reach the API server: on a bridge of its own, since a node's bridge comes and goes."""
CONTROL_PLANE_BRIDGE = "pdk0"
API_PORT = 6443
ETCD_PORT = 2379
PAUSE_IMAGE = "localhost/paddock-pause:1"
MODEL_FOLDER = Path("/var/lib/paddock/models")
"""What the product's default modelRoots name on every node; each node has a folder of its own there."""


def read_versions() -> dict[str, str]:
    """Return the pinned versions of versions.env as {name: version}."""
    lines = (HERE / "versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def cache_folder() -> Path:
    """Return the folder of built programs and images: PADDOCK_CACHE, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock"
    return Path(os.environ.get("PADDOCK_CACHE") or default)


def state_folder() -> Path:
    """Return the folder of the running cluster: PADDOCK_STATE, else /var/lib/paddock-cluster."""
    return Path(os.environ.get("PADDOCK_STATE") or "/var/lib/paddock-cluster")


@dataclass(frozen=True)
class Programs:
    """Paths of the programs in the cache."""

    cache: Path

    @cached_property
    def versions(self) -> dict[str, str]:
        """The pinned versions."""
        return read_versions()

    def _of(self, component: str, variable: str) -> Path:
        return self.cache / f"{component}-{self.versions[variable]}"

    @property
    def kubernetes(self) -> Path:
        """Folder of the control plane's programs, kubelet and kubectl."""
        return self._of("kubernetes", "KUBERNETES_VERSION")

    @property
    def etcd(self) -> Path:
        """The etcd program."""
        return self._of("etcd", "ETCD_VERSION") / "etcd"

    @property
    def containerd(self) -> Path:
        """Folder of containerd, its shim and ctr."""
        return self._of("containerd", "CONTAINERD_VERSION")

    @property
    def registry(self) -> Path:
        """An OCI registry, for the tests of the fetcher."""
        return self._of("registry", "REGISTRY_VERSION") / "registry"

    @property
    def s3(self) -> Path:
        """An S3 server, for the tests of the fetcher."""
        return self._of("versitygw", "VERSITYGW_VERSION") / "versitygw"

    @property
    def gcs(self) -> Path:
        """A server that speaks as Google's store does, for the tests of the fetcher."""
        return self._of("fake-gcs-server", "FAKE_GCS_VERSION") / "fake-gcs-server"

    @property
    def helm(self) -> Path:
        """The helm program."""
        return self._of("helm", "HELM_VERSION") / "helm"

    @property
    def llama(self) -> Path:
        """Folder of the compiled llama.cpp: bin/ and include/."""
        return self.cache / f"llama.cpp-b{self.versions['LLAMA_CPP_BUILD']}"


@dataclass(frozen=True)
class Node:
    """The addresses and folders of one node; everything that two nodes of one machine must not share."""

    number: int
    state: Path

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return f"node{self.number}"

    @property
    def folder(self) -> Path:
        """All that belongs to this node."""
        return self.state / "nodes" / self.name

    @property
    def bridge(self) -> str:
        """The bridge that its pods are attached to."""
        return f"pdk{self.number}"

    @property
    def subnet(self) -> str:
        """Addresses of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def address(self) -> str:
        """InternalIP of the node, on its bridge: so that every kubelet can use the usual port."""
        return f"10.244.{self.number}.1"

    @property
    def health_port(self) -> int:
        """Port of the kubelet's health page on the loopback address, which all nodes share."""
        return 10300 + self.number

    @property
    def socket(self) -> Path:
        """Socket of its containerd."""
        return self.folder / "containerd.sock"

    @property
    def models(self) -> Path:
        """What MODEL_FOLDER is on this node."""
        return self.folder / "models"


def nodes_of(state: Path) -> list[Node]:
    """Return the nodes that the state folder knows, in order."""
    folder = state / "nodes"
    numbers = sorted(int(each.name.removeprefix("node")) for each in folder.glob("node*")) if folder.is_dir() else []
    return [Node(number, state) for number in numbers]
