"""The real local cluster for tests: bring it up, talk to it, reach into its nodes, make its GPUs lie.

`ensure_cluster` is quick when the cluster is up. GPU identities below are those of tests/pretend/profiles/demo.
"""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cluster.local import LocalCluster
from cluster.processes import wait_until

_T = TypeVar("_T")

GTX_1060 = "GPU-1060a0c4-5d1f-4b6e-8c2a-3f7e9d10b601"
RTX_4080 = "GPU-4080b7e2-91c3-4f0d-a5d8-6c2b1e47f802"
RTX_PRO_6000 = "GPU-6000c9f1-27ab-4e38-b0c6-8d5f3a92e103"
GPU_NODES = {GTX_1060: "node1", RTX_4080: "node1", RTX_PRO_6000: "node2"}
PCI_IDS = {GTX_1060: "0000:01:00.0", RTX_4080: "0000:02:00.0", RTX_PRO_6000: "0000:41:00.0"}
INTEL_PCI_ID = "0000:00:02.0"


def ensure_cluster(nodes: int = 2, profile: str = "demo") -> Path:
    """Bring up the cluster with the images of this work tree, unless it is, and return its admin kubeconfig."""
    cluster = LocalCluster()
    cluster.build_programs()
    cluster.up(nodes)
    cluster.load_images(profile)
    return cluster.kubeconfig


def kubectl(*argv: str, check: bool = True, stdin: str | None = None) -> str:
    """Run kubectl as an administrator and return what it printed; its own words in the error when it fails."""
    cluster = LocalCluster()
    command = [str(cluster.programs.kubernetes / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *argv]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=180)
    if check and done.returncode:
        raise AssertionError(f"kubectl {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def get(*argv: str) -> Any:
    """Return `kubectl get ... -o json` as Python objects, None when there is no such object."""
    text = kubectl("get", *argv, "-o", "json", "--ignore-not-found")
    return json.loads(text) if text else None


def apply(*manifests: dict[str, Any]) -> None:
    """Apply objects."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))


def eventually(what: str, look: Callable[[], _T | None], seconds: float = 120) -> _T:
    """Poll `look` until it returns something true, and return that; AssertionError naming `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)
    return found


def node_exec(node: str, *argv: str, check: bool = True) -> str:
    """Run a command where the node's own folders are in place, and return what it printed."""
    return LocalCluster().node(node).exec(*argv, check=check)


def models_folder(node: str) -> Path:
    """Return the folder that is /var/lib/paddock/models on that node; tests may put files there."""
    return LocalCluster().node(node).node.models


def accounts_folder(node: str) -> Path:
    """Return the folder in which a node's processes note what they have of its pretend cards."""
    return LocalCluster().node(node).node.folder / "accounts"


def set_lie(node: str, *lies: str, device: str = "*") -> None:
    """Make a device of the node (UUID, PCI address, or all) lie to every process that starts from now on.

    tests/pretend/README.md says which lies there are and what each does.
    """
    file = models_folder(node) / ".pretend-lies"
    file.write_text(f"{device} {' '.join(lies)}\n")
    file.chmod(0o644)


def clear_lies(node: str) -> None:
    """Let every device of the node tell the truth again."""
    (models_folder(node) / ".pretend-lies").unlink(missing_ok=True)


def node_down(node: str, *, with_pods: bool = False) -> None:
    """End kubelet and containerd of a node, and its containers too when `with_pods`."""
    LocalCluster().stop_node(node, with_pods=with_pods)


def node_up(node: str) -> None:
    """Start the node again and wait until it is Ready."""
    LocalCluster().start_node(node)


def restart_component(name: str) -> None:
    """Restart one program, such as kube-apiserver, and wait until the cluster answers again."""
    cluster = LocalCluster()
    cluster.processes.restart(name)
    wait_until("API server ready", cluster.control_plane.ready, 60)
    cluster.wait_ready()
