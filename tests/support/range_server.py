"""A web server on the loopback address that serves bytes by ranges, and misbehaves on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    import ssl

Behaviour = Callable[[BaseHTTPRequestHandler], bool]
"""Answers a request in its own way and gives True, or gives False to have it answered properly."""


@dataclass
class Site:
    """What is served, and what was asked for."""

    files: Mapping[str, bytes]
    behaviour: Behaviour = lambda _: False
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of every request."""
    sent: int = 0
    """Bytes of files that were sent."""
    address: str = ""


@contextmanager
def serving(
    files: Mapping[str, bytes], behaviour: Behaviour = lambda _: False, tls: ssl.SSLContext | None = None
) -> Iterator[Site]:
    """Serve files, by path, until the end of the block; by https with a context of TLS."""
    site = Site(files, behaviour)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, self.headers.get("Range", "")))
            if not site.behaviour(self):
                answer(self, site)

        @override
        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, site: Site) -> None:
    """Answer as a good server does."""
    data = site.files.get(handler.path.partition("?")[0])
    if data is None:
        handler.send_error(404)
        return
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    start, end = (int(found[1]), int(found[2])) if found else (0, len(data) - 1)
    if start >= len(data):
        handler.send_error(416)
        return
    piece = data[start : end + 1]
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{start + len(piece) - 1}/{len(data)}")
    handler.send_header("Content-Length", str(len(piece)))
    handler.end_headers()
    site.sent += len(piece)
    handler.wfile.write(piece)
