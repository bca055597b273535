"""Connections to web servers: certificates, proxy, and a pool of those that are open and idle."""

import http.client
import ipaddress
import socket
import ssl
import threading
from collections import defaultdict
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from typing_extensions import override

from paddock.fetch.failures import FetchError
from paddock.fetch.settings import Settings

_PORTS: Final = {"http": 80, "https": 443}


class Server(NamedTuple):
    """Where a connection leads."""

    scheme: str
    host: str
    port: int

    @override
    def __str__(self) -> str:
        """Give HOST, or HOST:PORT where the port is unusual."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def server_of(address: str | SplitResult) -> Server:
    """Give the server of an http or https address; raises FetchError for anything else."""
    try:
        parts = urlsplit(address) if isinstance(address, str) else address
        port = parts.port
    except ValueError:
        raise FetchError("Untrusted", "the address is none of a web server") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise FetchError("Untrusted", f"{parts.scheme or 'it'}:// is no address of a web server")
    return Server(parts.scheme, parts.hostname, port or _PORTS[parts.scheme])


class _Checked(http.client.HTTPConnection):
    """Refuses to speak to link-local addresses: there clouds keep the credentials of their machines."""

    direct = True

    @override
    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = ipaddress.ip_address(str(self.sock.getpeername()[0]).partition("%")[0])
        if self.direct and peer.is_link_local:
            self.close()
            raise FetchError("Untrusted", f"{self.host} is a link-local address, which is never asked")


class _CheckedTls(http.client.HTTPSConnection, _Checked):
    """The same, encrypted: HTTPSConnection.connect() calls _Checked.connect() before its handshake."""


class Connections:
    """Makes connections and keeps idle ones; used by several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context = _tls(settings)
        self._idle: defaultdict[Server, list[http.client.HTTPConnection]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    def take(self, server: Server) -> http.client.HTTPConnection:
        """Give an idle connection, or a new one that connects at its first request."""
        with self._lock:
            idle = self._idle[server]
            if idle:
                return idle.pop()
        return self._new(server)

    def give(self, server: Server, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose answer was read to its end."""
        with self._lock:
            if not self._closed and connection.sock is not None:
                self._idle[server].append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all idle connections, and those that come back later."""
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                for connection in idle:
                    connection.close()
            self._idle.clear()

    def proxied(self, server: Server) -> bool:
        """Tell whether the proxy is used for it."""
        if self._settings.proxy is None:
            return False
        return not any(
            server.host == word or (word.startswith(".") and server.host.endswith(word)) or word == "*"
            for word in self._settings.no_proxy
        )

    def _new(self, server: Server) -> http.client.HTTPConnection:
        target = server
        if self._settings.proxy is not None and self.proxied(server):
            target = server_of(self._settings.proxy)
        seconds = self._settings.silence
        connection: _Checked
        if server.scheme == "https":
            connection = _CheckedTls(target.host, target.port, timeout=seconds, context=self._context)
        else:
            connection = _Checked(target.host, target.port, timeout=seconds)
        if target is not server:
            connection.direct = False
            if server.scheme == "https":
                connection.set_tunnel(server.host, server.port)
        return connection


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ssl.SSLError):
            raise FetchError("Untrusted", f"{settings.ca_file} holds no certificates that can be read") from None
    return context
