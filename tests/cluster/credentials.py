"""Keys, certificates and kubeconfigs of the local cluster, made with openssl, good for a year."""

import base64
import json
from pathlib import Path

from cluster.host import run
from cluster.settings import API_PORT, API_SERVICE_IP, CONTROL_PLANE_IP

_SERVER_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
    f"DNS:localhost,IP:127.0.0.1,IP:{API_SERVICE_IP},IP:{CONTROL_PLANE_IP}"
)
_SUBJECTS = {
    "apiserver": "/CN=kube-apiserver",
    "admin": "/O=system:masters/CN=admin",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Credentials:
    """The folder of keys of one cluster."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "pki"
        self._config = self.folder / "openssl.cnf"

    def make(self) -> None:
        """Make whatever the control plane needs and is not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._config.write_text("[req]\ndistinguished_name=name\n[name]\n")  # else the system's own extensions get in
        if not (self.folder / "ca.crt").exists():
            self._request(
                "ca", "/CN=local-cluster", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"
            )
        if not (self.folder / "service-accounts.pub").exists():
            key = self.folder / "service-accounts.key"
            run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
            run("openssl", "pkey", "-in", key, "-pubout", "-out", self.folder / "service-accounts.pub")
        for name, subject in _SUBJECTS.items():
            self.issue(name, subject)

    def issue(self, name: str, subject: str) -> None:
        """Make NAME.key and NAME.crt for `subject`, signed by the cluster's own authority, unless they are there."""
        if (self.folder / f"{name}.crt").exists():
            return
        extensions = ["basicConstraints=CA:FALSE", "extendedKeyUsage=clientAuth"]
        if name == "apiserver":
            extensions = ["basicConstraints=CA:FALSE", "extendedKeyUsage=serverAuth", f"subjectAltName={_SERVER_NAMES}"]
        self._request(name, subject, *extensions, signed=True)

    def kubeconfig(self, user: str, target: Path) -> Path:
        """Write a kubeconfig for `user` that needs no other file, and return its path."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "paddock-local",
                    "cluster": {
                        "server": f"https://{CONTROL_PLANE_IP}:{API_PORT}",
                        "certificate-authority-data": self._data("ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": self._data(f"{user}.crt"),
                        "client-key-data": self._data(f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": "paddock-local", "context": {"cluster": "paddock-local", "user": user}}],
            "current-context": "paddock-local",
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600)
        target.write_text(json.dumps(content, indent=1))
        return target

    def _data(self, file: str) -> str:
        return base64.b64encode((self.folder / file).read_bytes()).decode()

    def _request(self, name: str, subject: str, *extensions: str, signed: bool = False) -> None:
        signer = ["-CA", str(self.folder / "ca.crt"), "-CAkey", str(self.folder / "ca.key")] if signed else []
        added = [word for extension in extensions for word in ("-addext", extension)]
        target = self.folder / f"{name}.crt"
        run(
            *(
                "openssl",
                "req",
                "-x509",
                "-config",
                str(self._config),
                "-days",
                "365",
                "-subj",
                subject,
                *_KEY,
                *signer,
                *added,
            ),
            *("-keyout", str(self.folder / f"{name}.key"), "-out", str(target) + ".new"),
        )
        Path(str(target) + ".new").rename(target)
