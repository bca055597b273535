"""One node: a mount namespace, containerd and a kubelet.

The namespace is held by a process that only sleeps, so that it outlives kubelet and containerd: a node that is "down"
keeps its pods' mounts, as a real one does. Folders whose paths are fixed in the kubelet, in containerd or in the
product are the node's own inside it.
"""

import http.client
import json
import signal
import subprocess
from pathlib import Path

from cluster import host
from cluster.credentials import Credentials
from cluster.processes import Processes, Program, wait_until
from cluster.settings import PAUSE_IMAGE, Node, Programs

_CONTAINERD = """\
version = 3
root = "{folder}/containerd"
state = "{folder}/run"
# This one would make a folder in /opt.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
address = "{socket}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["{folder}/cdi"]
# Without the right to lower it, runc can't start a container whose score is below its own.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}/cni"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
"""
_RUNTIME = """\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""
_TOOLKIT = "/run/pretend-toolkit"
"""Mounted by the runtime class nvidia alone; without it the pretend NVIDIA cards stay hidden, as real ones would."""
_ACCOUNTS = "/run/pretend-accounts"
"""Mounted beside it: where processes note how much of which card they have, which a driver would know."""
_SPACE = """\
set -e
mount --make-rprivate /
{binds}
mount --make-rshared /var/lib/kubelet
: > "{ready}"
exec sleep infinity
"""


class NodeRunner:
    """Starts and ends the programs of one node."""

    def __init__(self, node: Node, programs: Programs, processes: Processes) -> None:
        self.node = node
        self._programs = programs
        self._processes = processes
        self._credentials = Credentials(node.state)
        self._space = f"{node.name}-space"

    def start(self) -> None:
        """Start whatever of the node does not run; it registers itself with the API server."""
        self._write()
        host.connect_node(self.node)
        host.make_cgroup(self.node.name)
        self._start_space()
        self._start_containerd()
        self._start_kubelet()

    def running(self) -> bool:
        """Tell whether kubelet and containerd both run."""
        return all(self._processes.pid(f"{self.node.name}-{each}") for each in ("containerd", "kubelet"))

    def wait_healthy(self) -> None:
        """Wait for the kubelet itself: its Node object goes on saying Ready for a while after it is gone."""
        wait_until(f"kubelet of {self.node.name} (see {self.node.folder}/log)", self._kubelet_answers, 60)

    def _kubelet_answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.node.health_port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self, *, with_pods: bool = False) -> None:
        """End kubelet and containerd as a crash would; the containers go on unless `with_pods`."""
        for each in ("kubelet", "containerd"):
            self._processes.stop(f"{self.node.name}-{each}", sig=signal.SIGKILL)
        if with_pods:
            space = self._processes.pid(self._space)
            self._end_pods(space)

    def _end_pods(self, space: int | None) -> None:
        host.end_members(self.node.name)
        for pid in host.members(self._system):
            if pid != space:
                host.kill(pid)

    def inside(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` where the node's own folders are in place."""
        pid = self._processes.pid(self._space)
        return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *argv]

    def exec(self, *argv: str, check: bool = True) -> str:
        """Run a short command on the node and return what it printed."""
        return host.run(*self.inside(*argv), check=check)

    def ctr(self, *argv: str) -> list[str]:
        """Return the command that runs containerd's own client on this node."""
        return self.inside(str(self._programs.containerd / "ctr"), "-a", str(self.node.socket), "-n", "k8s.io", *argv)

    @property
    def _system(self) -> str:
        return f"{self.node.name}-system"

    def _start(self, what: str, *argv: str, path: str = "") -> None:
        name = f"{self.node.name}-{what}"
        log = str(self.node.folder / "log" / f"{what}.log")
        self._processes.start(Program(name, argv, log, host.joining(self._system), path))

    def _start_space(self) -> None:
        ready = self.node.folder / "space-ready"
        if self._processes.pid(self._space) is None:
            ready.unlink(missing_ok=True)
        binds = [f"mount --bind {self._own(point)} {point}" for point in host.mount_points()]
        script = _SPACE.format(binds="\n".join(binds), ready=ready)
        self._start("space", "unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", script)
        wait_until(f"mounts of {self.node.name}", ready.exists, 10, every=0.01)

    def _own(self, point: str) -> Path:
        return (
            self.node.models
            if point.endswith("/models")
            else self.node.folder / "own" / point.strip("/").replace("/", "-")
        )

    def _start_containerd(self) -> None:
        program = str(self._programs.containerd / "containerd")
        config = str(self.node.folder / "containerd.toml")
        self._start("containerd", *self.inside(program, "-c", config), path=str(self._programs.containerd))
        wait_until(f"containerd of {self.node.name}", self._containerd_answers, 30)

    def _containerd_answers(self) -> bool:
        return subprocess.run(self.ctr("version"), capture_output=True, check=False).returncode == 0

    def _start_kubelet(self) -> None:
        self._start(
            "kubelet",
            *self.inside(
                str(self._programs.kubernetes / "kubelet"),
                f"--config={self.node.folder / 'kubelet.yaml'}",
                f"--kubeconfig={self.node.folder / 'kubeconfig'}",
                f"--hostname-override={self.node.name}",
                f"--node-ip={self.node.address}",
                "--v=1",
            ),
        )

    def _write(self) -> None:
        node = self.node
        for folder in (node.models, node.folder / "cni", node.folder / "cdi", node.folder / "log"):
            folder.mkdir(parents=True, exist_ok=True)
        for point in host.mount_points():
            self._own(point).mkdir(parents=True, exist_ok=True)
        user = f"system:node:{node.name}"
        self._credentials.issue(node.name, f"/O=system:nodes/CN={user}")
        self._credentials.kubeconfig(node.name, node.folder / "kubeconfig")
        config = _CONTAINERD.format(folder=node.folder, socket=node.socket, pause=PAUSE_IMAGE)
        config += "".join(_RUNTIME.format(name=name, runc="/usr/sbin/runc") for name in ("nvidia", "runc"))
        # What the vendor's runtime adds to a container: here only the sign that it was there.
        config = config.replace(
            "runtimes.nvidia]\n", f'runtimes.nvidia]\nbase_runtime_spec = "{self._nvidia_spec()}"\n'
        )
        (node.folder / "containerd.toml").write_text(config)
        (node.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._network(), indent=1))
        (node.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet(), indent=1))

    def end_if_outdated(self) -> None:
        """End containerd and kubelet if they have other settings or pretend hardware than now; containers go on."""
        file = self._nvidia_file
        other = file.exists() and json.loads(file.read_text())["mounts"][-2:] != self._pretend_mounts()
        config = self.node.folder / "kubelet.yaml"
        if other or (config.exists() and json.loads(config.read_text()) != self._kubelet()):
            self.stop()

    @property
    def _nvidia_file(self) -> Path:
        return self.node.folder / "nvidia-spec.json"

    def _pretend_mounts(self) -> list[dict[str, object]]:
        """Give what the runtime class nvidia adds to a container."""
        folder = self.node.folder
        return [
            {"destination": place, "type": "bind", "source": str(source), "options": ["bind", mode]}
            for place, source, mode in ((_TOOLKIT, folder / "toolkit", "ro"), (_ACCOUNTS, folder / "accounts", "rw"))
        ]

    def _nvidia_spec(self) -> Path:
        (self.node.folder / "toolkit").write_text("pretend\n")
        accounts = self.node.folder / "accounts"
        accounts.mkdir(exist_ok=True)
        accounts.chmod(0o1777)
        spec = json.loads(host.run(self._programs.containerd / "ctr", "oci", "spec"))
        spec["mounts"] += self._pretend_mounts()
        self._nvidia_file.write_text(json.dumps(spec))
        return self._nvidia_file

    def _network(self) -> dict[str, object]:
        ranges = [[{"subnet": self.node.subnet, "gateway": self.node.address}]]
        address = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": self.node.bridge, "isGateway": True, "hairpinMode": True, "ipam": address}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}

    def _kubelet(self) -> dict[str, object]:
        node = self.node
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "healthzPort": node.health_port,
            "containerRuntimeEndpoint": f"unix://{node.socket}",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{host.OURS}/{node.name}",
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,  # lowering it needs a right that a container may lack
            "makeIPTablesUtilChains": False,
            "failSwapOn": False,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._credentials.folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": ["10.96.0.10"],  # nobody answers there, at once; without one every pod gets a warning
            "clusterDomain": "cluster.local",
            # The disk belongs to somebody else; a test cluster must not evict pods because of it.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "nodeLeaseDurationSeconds": 20,
            "volumePluginDir": str(node.folder / "volume-plugins"),
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "serializeImagePulls": False,
            "featureGates": {"ImageVolume": True},
        }
