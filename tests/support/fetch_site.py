"""Web servers for tests of the fetcher: files with ranges and ETags, and everything that real servers do wrong.

The same server plays a hub (hf://) and registries (oci://, ollama://): each is a few documents beside the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from typing_extensions import override

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

Behaviour = Callable[["Handler"], bool]
"""Answers a request in its own way and gives True, or gives False to have it answered properly."""

PIECE = 64 * 1024


@dataclass
class Site:
    """What is served, and what was asked for."""

    files: dict[str, Path] = field(default_factory=dict)
    """By path, such as /model.gguf."""
    documents: dict[str, Any] = field(default_factory=dict)
    """JSON by path, without the query; bytes are sent as they are."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Where paths lead instead."""
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Further headers of a path's answers."""
    etags: dict[str, str] = field(default_factory=dict)
    """By path; a file without one here gets one of its size and time."""
    behaviour: Behaviour = lambda _: False
    authorization: str | None = None
    """What must be in the header Authorization."""
    bytes_per_second: float = 0
    """Of each answer; 0 = as fast as it goes."""
    ranges: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of every request."""
    headers_seen: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    """Bytes of files that were sent."""
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, path: str) -> str:
        """Give the ETag of a file."""
        if path in self.etags:
            return self.etags[path]
        found = self.files[path].stat()
        return f'"{found.st_size:x}-{found.st_mtime_ns:x}"'

    def ranges_asked(self, path: str) -> list[str]:
        """Give the ranges that were asked of a path."""
        return [asked for one, asked in self.asked if one.partition("?")[0] == path]


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        with self.site.lock:
            self.site.asked.append((self.path, self.headers.get("Range", "")))
            self.site.headers_seen.append(dict(self.headers))
        with suppress(ConnectionError, TimeoutError):
            if not self.site.behaviour(self):
                self.properly()

    def do_HEAD(self) -> None:
        self.do_GET()

    @override
    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def properly(self) -> None:
        """Answer as a good server does."""
        path = unquote(urlsplit(self.path).path)
        if self.site.authorization and self.headers.get("Authorization") != self.site.authorization:
            self.status(401)
        elif path in self.site.redirects:
            self.status(302, Location=self.site.redirects[path], **self.site.headers.get(path, {}))
        elif path in self.site.documents:
            self.document(self.site.documents[path], self.site.headers.get(path, {}))
        elif path in self.site.files:
            self.file(path)
        else:
            self.status(404)

    def status(self, code: int, **headers: str) -> None:
        """Answer with a status and no body."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def document(self, document: Any, headers: dict[str, str]) -> None:
        """Answer with JSON, or with bytes."""
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(raw)

    def file(self, path: str) -> None:
        """Answer with a file, or the range of it that was asked for."""
        size, etag = self.site.files[path].stat().st_size, self.site.etag(path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        expected = self.headers.get("If-Range")
        if asked and self.site.ranges and expected in (None, etag):
            first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
            if first >= size:
                self.status(416, Content_Range=f"bytes */{size}")
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            first, last = 0, size - 1
            self.send_response(200)
        if self.site.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if etag:
            self.send_header("ETag", etag)
        for name, value in self.site.headers.get(path, {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if self.command == "GET":
            self.send_bytes(self.site.files[path], first, last + 1)

    def send_bytes(self, file: Path, first: int, end: int) -> None:
        """Send a part of a file, as fast as the site allows."""
        self.wfile.flush()
        began, start = time.monotonic(), first
        with file.open("rb") as stream:
            while first < end:
                if not self.site.bytes_per_second:
                    count = self.connection.sendfile(stream, first, end - first)
                else:
                    count = self.connection.sendfile(stream, first, min(PIECE, end - first))
                    ahead = (first - start) / self.site.bytes_per_second - (time.monotonic() - began)
                    time.sleep(max(0.0, ahead))
                first += count
                with self.site.lock:
                    self.site.sent += count
                if not count:
                    return

    def reset(self) -> None:
        """Cut the connection in the rudest way."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed here."""


@contextmanager
def site(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", **options: Any) -> Iterator[Site]:
    """Serve a site at an address of this machine until the end of the block; by https with a context of TLS."""
    served = Site(**options)
    server = _Server((host, 0), type("Bound", (Handler,), {"site": served}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    served.address = f"{'https' if tls else 'http'}://{host}:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sha256(path: Path) -> str:
    """Give the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_repository(served: Site, repository: str, files: dict[str, Path], revision: str = "main") -> None:
    """Let the site play a hub with a repository; files are redirected to another path, as to a CDN."""
    siblings = []
    for path, file in files.items():
        large = {"sha256": sha256(file), "size": file.stat().st_size, "pointerSize": 134}
        siblings.append({"rfilename": path, "size": large["size"], "blobId": "b" * 40, "lfs": large})
        served.redirects[f"/{repository}/resolve/{COMMIT}/{path}"] = (
            f"{served.address}/cdn/{repository}/{path}?Signature=s3cret"
        )
        served.files[f"/cdn/{repository}/{path}"] = file
        served.headers[f"/{repository}/resolve/{COMMIT}/{path}"] = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{large["sha256"]}"',
            "X-Linked-Size": str(large["size"]),
        }
    listing = {"id": repository, "sha": COMMIT, "siblings": siblings, "cardData": {"license": "gemma"}}
    for one in (revision, COMMIT):
        served.documents[f"/api/models/{repository}/revision/{one}"] = listing


def add_artifact(served: Site, repository: str, tag: str, layers: list[dict[str, Any]], files: list[Path]) -> str:
    """Let the site play a registry with an artifact; `layers` say media types and annotations. Gives its digest."""
    described = []
    for layer, file in zip(layers, files, strict=True):
        digest = "sha256:" + sha256(file)
        described.append({**layer, "digest": digest, "size": file.stat().st_size})
        served.files[f"/v2/{repository}/blobs/{digest}"] = file
    kind = "application/vnd.oci.image.manifest.v1+json"
    raw = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": described}).encode()
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    for one in (tag, digest):
        served.documents[f"/v2/{repository}/manifests/{one}"] = raw
    return digest


def basic(username: str, password: str) -> str:
    """Give the value of Authorization."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
