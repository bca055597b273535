"""A small client of the API server for tests, and waiting for what must come or must stay."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from support.apiserver import Answer, ApiServer

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = dict[str, Any]
T = TypeVar("T")
BUSY_SECONDS = 20
MERGE = "application/merge-patch+json"


def eventually(condition: Callable[[], T], seconds: float = 30.0, what: str = "") -> T:
    """Repeat until the condition holds, and give its value; an AssertionError that it raises counts as not yet."""
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            value = condition()
            if value:
                return value
            last = f"gave {value!r}"
        except (AssertionError, KeyError, IndexError, ValueError) as error:
            last = f"{type(error).__name__}: {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s{': ' if what else ''}{what}; last: {last}")
        time.sleep(0.02)


def stays(condition: Callable[[], object], seconds: float) -> None:
    """See that a condition holds all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        assert value, f"held only until {deadline - time.monotonic():.1f} s before the end: {value!r}"
        time.sleep(0.05)


class Client:
    """A small client for tests, with one connection for each thread."""

    def __init__(self, server: ApiServer, token: str | None = None) -> None:
        self._server, self._token, self._local = server, token or server.token, threading.local()
        self._open: list[http.client.HTTPSConnection] = []

    def _connection(self, *, fresh: bool = False) -> http.client.HTTPSConnection:
        found: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if found is None or fresh:
            if found is not None:
                found.close()
            context = ssl.create_default_context(cafile=str(self._server.certificate))
            context.check_hostname = False
            found = http.client.HTTPSConnection("127.0.0.1", self._server.port, timeout=60, context=context)
            self._local.connection = found
            self._open.append(found)
        return found

    def call(self, method: str, path: str, body: object = None, content: str | None = None) -> Answer:
        """Send a request, again while the server is too busy for it, as after a change of a definition.

        A patch is a merge patch unless `content` says otherwise.
        """
        content = content or (MERGE if method == "PATCH" else "application/json")
        deadline = time.monotonic() + BUSY_SECONDS
        while (answer := self._send(method, path, body, content)).status == 429 and time.monotonic() < deadline:
            time.sleep(0.2)
        return answer

    def _send(self, method: str, path: str, body: object, content: str) -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        data = None if body is None else json.dumps(body)
        try:
            self._connection().request(method, path, data, headers)
            response = self._connection().getresponse()
        except (http.client.HTTPException, ConnectionError):
            self._connection(fresh=True).request(method, path, data, headers)
            response = self._connection().getresponse()
        text = response.read()
        return Answer(response.status, json.loads(text) if text.startswith(b"{") else {"text": text.decode()})

    def get(self, path: str) -> JSON | None:
        """Read an object; None when there is none."""
        answer = self.call("GET", path)
        if answer.status == 404:
            return None
        assert answer.status == 200, answer
        return answer.body

    def items(self, path: str) -> list[JSON]:
        """Read a list."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        found: list[JSON] = answer.body["items"]
        return found

    def do(self, method: str, path: str, body: object = None, content: str | None = None) -> JSON:
        """Send a request that must succeed."""
        answer = self.call(method, path, body, content)
        assert answer.status < 300, answer
        return answer.body

    def delete(self, path: str, **options: Any) -> None:
        """Delete an object, if there is one."""
        answer = self.call("DELETE", path, options or None)
        assert answer.status in (200, 202, 404), answer

    def close(self) -> None:
        """Close all connections."""
        for one in self._open:
            one.close()
