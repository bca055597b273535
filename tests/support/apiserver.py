"""A private API server with its own etcd, for tests of what it accepts and refuses: no nodes, no controllers."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cluster.settings import Programs, cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_SECONDS = 90
STOP_SECONDS = 20


def missing_programs() -> str | None:
    """Say which programs the server needs and the cache lacks; None when all are there."""
    programs = Programs(cache_folder())
    wanted = (programs.etcd, programs.kubernetes / "kube-apiserver")
    lacking = [str(path.name) for path in wanted if not path.is_file()]
    return f"{' and '.join(lacking)} not built yet: tests/cluster/build.sh builds them" if lacking else None


@dataclass(frozen=True)
class Answer:
    """What the API server answered."""

    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """The Status message of a refusal, else nothing."""
        return str(self.body.get("message", "")) if self.body.get("kind") == "Status" else ""


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    port: int
    token: str
    certificate: Path

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: object = None, content: str = "application/json", accept: str = "*/*"
    ) -> Answer:
        """Send one request; refusals are answers, only a dead server raises."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content, "Accept": accept}
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as response:  # noqa: S310
                return Answer(response.status, _parse(response.read()))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Answer(refusal.code, _parse(refusal.read()))

    def wait(self, method: str, path: str, status: int = 200) -> Answer:
        """Repeat a request until it has the wanted status; TimeoutError names the last answer."""
        deadline = time.monotonic() + START_SECONDS
        last: object = None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                last = answer = self.call(method, path)
                if answer.status == status:
                    return answer
            time.sleep(0.2)
        raise TimeoutError(f"{path} did not answer {status} in {START_SECONDS} s; last: {last}")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {"text": data.decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def api_server(folder: Path, *arguments: str) -> Iterator[ApiServer]:
    """Run etcd and an API server below `folder`, until the block ends; `arguments` are further ones of the server."""
    programs = Programs(cache_folder())
    client_port, peer_port, port = _free_ports(3)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},test,test,"system:masters"\n')
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "accounts.key").write_bytes(key)
    etcd = [
        str(programs.etcd),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{client_port}",
        f"--advertise-client-urls=http://127.0.0.1:{client_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
    ]
    server = [
        str(programs.kubernetes / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{client_port}",
        f"--cert-dir={folder / 'certificates'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--feature-gates=ImageVolume=true",
        *arguments,
    ]
    with _process(etcd, folder / "etcd.log"), _process(server, folder / "apiserver.log"):
        running = ApiServer(port, token, folder / "certificates" / "apiserver.crt")
        running.wait("GET", "/readyz")
        running.wait("GET", "/api/v1/namespaces/default")
        yield running
