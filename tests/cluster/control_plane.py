"""etcd, API server, controller manager, scheduler and the service proxy: how each is started."""

import json
from pathlib import Path

from cluster import host
from cluster.credentials import Credentials
from cluster.processes import Processes, Program, wait_until
from cluster.settings import (
    API_PORT,
    CONTROL_PLANE_IP,
    ETCD_PORT,
    POD_NETWORK,
    SERVICE_NETWORK,
    Programs,
)

_CGROUP = "control-plane"


class ControlPlane:
    """The control plane of one state folder; every method may be called again and again."""

    def __init__(self, state: Path, programs: Programs, processes: Processes) -> None:
        self._state = state
        self._programs = programs
        self._processes = processes
        self._credentials = Credentials(state)
        self.kubeconfig = state / "kubeconfig"

    def start(self) -> None:
        """Start all but the service proxy, and wait until the API server is ready."""
        self._credentials.make()
        self._credentials.kubeconfig("admin", self.kubeconfig)
        self._start_etcd()
        self._start("kube-apiserver", *self._api_server)
        wait_until("API server ready", self.ready, 60)
        self._start_controller_manager()
        self._start_scheduler()

    def ready(self) -> bool:
        """Ask the API server whether it is."""
        kubectl = self._programs.kubernetes / "kubectl"
        return host.run(kubectl, "--kubeconfig", self.kubeconfig, "get", "--raw=/readyz", check=False) == "ok"

    def start_proxy(self, node_name: str) -> None:
        """Start the service proxy; one serves all nodes, since they share a network. The node must exist."""
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self._kubeconfig("proxy"))},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": node_name,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "conntrack": {"maxPerCore": 0, "min": 0},
            "nftables": {"masqueradeAll": host.answers_need_masquerade(), "minSyncPeriod": "200ms"},
        }
        file, text = self._state / "proxy.yaml", json.dumps(config, indent=1)
        if not file.exists() or file.read_text() != text:  # the proxy ends as soon as its file is written
            file.write_text(text)
        self._start("kube-proxy", str(self._programs.kubernetes / "kube-proxy"), f"--config={file}")

    def _start(self, name: str, *argv: str) -> None:
        log = str(self._state / "log" / f"{name}.log")
        self._processes.start(Program(name, argv, log, host.joining(_CGROUP)))

    def _kubeconfig(self, user: str) -> Path:
        return self._credentials.kubeconfig(user, self._state / "kubeconfigs" / user)

    def _start_etcd(self) -> None:
        url = f"http://127.0.0.1:{ETCD_PORT}"
        peer = f"http://127.0.0.1:{ETCD_PORT + 1}"
        self._start(
            "etcd",
            str(self._programs.etcd),
            f"--data-dir={self._state / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            "--log-level=warn",
            "--unsafe-no-fsync",  # the data is worth nothing after a crash of the machine, and the disk is slow
        )

    def end_if_outdated(self) -> None:
        """End an API server that was started with other arguments."""
        self._processes.end_if_outdated("kube-apiserver", self._api_server)

    @property
    def _api_server(self) -> tuple[str, ...]:
        pki = self._credentials.folder
        return (
            str(self._programs.kubernetes / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            f"--bind-address={CONTROL_PLANE_IP}",
            f"--advertise-address={CONTROL_PLANE_IP}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",  # node names are in no DNS
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--feature-gates=ImageVolume=true",
            # Half a minute instead of five: tests of lost nodes wait for it.
            "--default-not-ready-toleration-seconds=30",
            "--default-unreachable-toleration-seconds=30",
            "--profiling=false",
        )

    def _start_controller_manager(self) -> None:
        pki = self._credentials.folder
        self._start(
            "kube-controller-manager",
            str(self._programs.kubernetes / "kube-controller-manager"),
            f"--kubeconfig={self._kubeconfig('controller-manager')}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--controllers=*,-node-ipam-controller",  # each node's pod addresses are fixed by its own settings
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=24s",
            "--terminated-pod-gc-threshold=200",
            "--pvclaimbinder-sync-period=5s",
            f"--flex-volume-plugin-dir={self._state / 'volume-plugins'}",  # else it makes a folder in /usr
            "--profiling=false",
        )

    def _start_scheduler(self) -> None:
        self._start(
            "kube-scheduler",
            str(self._programs.kubernetes / "kube-scheduler"),
            f"--kubeconfig={self._kubeconfig('scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--profiling=false",
        )
