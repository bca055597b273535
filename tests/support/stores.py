"""A real OCI registry, a real S3 server and a server of Google's interface on the loopback address.

They are built from Go modules when first needed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.settings import HERE, Programs, cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "ann", "s3cretpassword"
HASH = "$2y$05$abcdefghijklmnopqrstuuAI3YhLImoBj.UYAmQZ9pyGRjfUUeppq"
"""Of PASSWORD, by bcrypt."""
ACCESS, SECRET = "AKIDTEST", "s3cretaccesskey"
START_SECONDS = 60


def built(component: str, program: Path) -> Path:
    """Give the program, after building it if need be (about a minute)."""
    if not program.is_file():
        subprocess.run(
            [HERE / "build.sh", component], check=True, capture_output=True, env=_environment(), timeout=1800
        )
    return program


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def _running(command: list[str | Path], address: tuple[str, int], log: Path, **environment: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=_environment() | environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(address, 1).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


@dataclass(frozen=True)
class Registry:
    """A running registry that wants USER and PASSWORD."""

    host: str

    def call(self, method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream") -> Any:
        """Send one request as the user; raises for a refusal."""
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        request = urllib.request.Request(url, data=body, method=method)  # noqa: S310 - the loopback address
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
        request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - the loopback address
            return response.headers

    def push(self, repository: str, tag: str, files: list[tuple[Path, dict[str, Any]]]) -> str:
        """Push an artifact of files, each with what its layer says besides digest and size; gives its digest."""
        layers = []
        for path, said in files:
            raw = path.read_bytes()
            layers.append({**said, **self._blob(repository, raw)})
        return self._manifest(repository, tag, "application/vnd.oci.empty.v1+json", b"{}", layers)

    def push_image(self, repository: str, tag: str, files: dict[str, Path]) -> str:
        """Push a container image that holds nothing but files, by their path in it; gives its digest."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, path in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = path.stat().st_size, 0o644
                with path.open("rb") as stream:
                    tar.addfile(member, stream)
        layer = self._blob(repository, archive.getvalue())
        roots = {"type": "layers", "diff_ids": [layer["digest"]]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": roots, "config": {}}).encode()
        kind = "application/vnd.oci.image.config.v1+json"
        layers = [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **layer}]
        return self._manifest(repository, tag, kind, config, layers)

    def _manifest(self, repository: str, tag: str, config_kind: str, raw: bytes, layers: list[dict[str, Any]]) -> str:
        config = {"mediaType": config_kind, **self._blob(repository, raw)}
        kind = "application/vnd.oci.image.manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
        body = json.dumps(manifest).encode()
        self.call("PUT", f"/v2/{repository}/manifests/{tag}", body, kind)
        return "sha256:" + hashlib.sha256(body).hexdigest()

    def _blob(self, repository: str, raw: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(raw).hexdigest()
        place = self.call("POST", f"/v2/{repository}/blobs/uploads/")["Location"]
        self.call("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", raw)
        return {"digest": digest, "size": len(raw)}


@contextmanager
def registry(folder: Path, host: str = "127.0.0.1") -> Iterator[Registry]:
    """Run a registry at an address of this machine until the end of the block."""
    program, port = built("registry", Programs(cache_folder()).registry), free_port()
    (folder / "htpasswd").write_text(f"{USER}:{HASH}\n")
    (folder / "config.yml").write_text(
        f"""version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{host}:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""
    )
    command: list[str | Path] = [program, "serve", folder / "config.yml"]
    with _running(command, (host, port), folder / "log", OTEL_TRACES_EXPORTER="none"):
        yield Registry(f"{host}:{port}")


@contextmanager
def s3(folder: Path, bucket: str, host: str = "127.0.0.1") -> Iterator[str]:
    """Run an S3 server with a bucket, whose objects are the files of folder/data/BUCKET; gives its address."""
    program, port = built("s3", Programs(cache_folder()).s3), free_port()
    (folder / "data" / bucket).mkdir(parents=True)
    command: list[str | Path] = [
        program,
        "--port",
        f"{host}:{port}",
        "--health",
        "/health",
        "posix",
        folder / "data",
    ]
    with _running(command, (host, port), folder / "log", ROOT_ACCESS_KEY=ACCESS, ROOT_SECRET_KEY=SECRET):
        yield f"http://{host}:{port}"


@contextmanager
def gcs(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a server of Google's interface, whose buckets are the folders of folder/data; gives its address."""
    program, port = built("gcs", Programs(cache_folder()).gcs), free_port()
    command: list[str | Path] = [
        program,
        *("-scheme", "http", "-host", host, "-port", str(port), "-public-host", f"{host}:{port}"),
        *("-backend", "memory", "-data", folder / "data", "-log-level", "warn"),
    ]
    with _running(command, (host, port), folder / "log"):
        yield f"http://{host}:{port}"


def google_account(address: str) -> str:
    """Give the serviceAccount.json that leads to such a server, which wants no token."""
    nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
    return json.dumps({"gcs_base_url": address, "disable_oauth": True, **nobody})
