"""HTTP: requests, redirects, what a status means, and ranges of files as they arrive."""

import email.utils
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import urljoin, urlsplit

from paddock import __version__
from paddock.fetch.connections import Connections, Server, server_of
from paddock.fetch.failures import FetchError
from paddock.fetch.settings import Settings

MOST_JSON: Final = 16 * 1024 * 1024
"""Bytes of a listing or manifest; the largest repositories have some thousand files."""

_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_OK, _PARTIAL = 200, 206
_CHANGED, _BEYOND_END = 412, 416
_TOO_MANY: Final = 429
_LOGIN_FAULTS: Final = (401, 403, 407)
_GONE: Final = (404, 410)
_LATER: Final = (408, 425, _TOO_MANY)
_SERVER_FAULT: Final = 500
_LONGEST_WAIT: Final = 600.0
"""Seconds: what a server asks for beyond that is not waited for at once."""
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_DRAINED: Final = 64 * 1024
"""Bytes of an unwanted answer that are read to keep its connection."""


class Authorizer(Protocol):
    """Knows what to say to the server of the first address; never asked for one that a redirect leads to."""

    def header(self) -> str | None:
        """Give the value of Authorization."""

    def renew(self, challenge: str) -> bool:
        """Get a new token after a 401 with this WWW-Authenticate; False = nothing more can be done."""


class Fixed:
    """A credential that stays as it is."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def header(self) -> str | None:
        """Give the value of Authorization."""
        return self._value

    def renew(self, challenge: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing can be renewed."""
        return False


class Answer:
    """The answer to one request, whose body is read here."""

    def __init__(self, url: str, response: http.client.HTTPResponse) -> None:
        self.url = url
        self.status = response.status
        self.headers = response.headers
        self._response = response
        length = response.getheader("Content-Length") or ""
        self.length = int(length) if length.isdecimal() and len(length) < 20 else None  # noqa: PLR2004 digits of 2**63

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of the buffer; 0 = the end. Raises FetchError."""
        try:
            return self._response.readinto(buffer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise broken(server_of(self.url), error) from None

    @property
    def finished(self) -> bool:
        """Whether the body was read to its end, so that the connection can be used again."""
        return self._response.isclosed()

    @property
    def etag(self) -> str | None:
        """The strong ETag, if there is one."""
        found = self.headers.get("ETag", "").strip()
        return found if found.startswith('"') and len(found) < 1024 else None  # noqa: PLR2004 no sane one is longer

    @property
    def server(self) -> Server:
        """Who answered."""
        return server_of(self.url)


class Web:
    """Asks web servers; used by several threads at once. Every method raises FetchError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._connections = Connections(settings)
        self._landed: dict[str, str] = {}
        self._lock = threading.Lock()
        self.requests = 0
        """Requests that were sent, for tests and for the curious."""

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def json(self, url: str, authorizer: Authorizer, headers: Mapping[str, str] | None = None) -> Any:
        """GET a JSON document."""
        raw, answer = self.bytes(url, authorizer, {"Accept": "application/json", **(headers or {})})
        try:
            return json.loads(raw)
        except ValueError:
            raise FetchError("Unreachable", f"{answer.server} does not answer with JSON") from None

    def bytes(self, url: str, authorizer: Authorizer, headers: Mapping[str, str] | None = None) -> tuple[bytes, Answer]:
        """GET a small document."""
        with self.get(url, authorizer, headers or {}) as answer:
            if answer.status != _OK:
                raise refusal(answer)
            return read_all(answer, MOST_JSON), answer

    @contextmanager
    def get(
        self, url: str, authorizer: Authorizer, headers: Mapping[str, str], *, remember: bool = False
    ) -> Iterator[Answer]:
        """GET an address through its redirects; gives every status but a redirect.

        With `remember`, where the redirects led to is asked directly the next time, until it refuses.
        """
        landed = self._landed.get(url) if remember else None
        if landed is not None:
            with self._one(landed, None, headers) as answer:
                if answer.status not in (*_LOGIN_FAULTS, *_GONE):
                    yield answer
                    return
            with self._lock:
                self._landed.pop(url, None)
        renewed = False
        while True:
            with self._follow(url, authorizer, headers) as answer:
                challenge = answer.headers.get("WWW-Authenticate", "")
                own = answer.server == server_of(url)
                if answer.status != 401 or renewed or not own or not authorizer.renew(challenge):  # noqa: PLR2004 HTTP
                    if remember and not own and answer.status in (_OK, _PARTIAL):
                        self._landed[url] = answer.url
                    yield answer
                    return
            renewed = True

    @contextmanager
    def _follow(self, url: str, authorizer: Authorizer, headers: Mapping[str, str]) -> Iterator[Answer]:
        first = server_of(url)
        for _ in range(_MOST_REDIRECTS + 1):
            value = authorizer.header() if server_of(url) == first else None
            with self._one(url, value, headers) as answer:
                if answer.status not in _REDIRECTS:
                    yield answer
                    return
                target = urljoin(url, answer.headers.get("Location", ""))
            before, after = server_of(url), server_of(target)
            if before.scheme == "https" and after.scheme != "https":
                raise FetchError("Untrusted", f"{before} redirects to {after.scheme}://{after}, which is not encrypted")
            url = target
        raise FetchError("Untrusted", f"{first} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _one(self, url: str, authorization: str | None, headers: Mapping[str, str]) -> Iterator[Answer]:
        server = server_of(url)
        if server.scheme == "http" and not self.settings.plain_http:
            raise FetchError("Untrusted", f"{server} is asked by http://, which the settings do not allow")
        sent = {"User-Agent": f"paddock/{__version__}", "Accept-Encoding": "identity", **headers}
        if authorization is not None:
            sent["Authorization"] = authorization
        connection, response = self._send(server, url, sent)
        answer = Answer(url, response)
        try:
            yield answer
            if not answer.finished and (answer.length or 0) <= _DRAINED:
                read_all(answer, _DRAINED)
        finally:
            if answer.finished:
                self._connections.give(server, connection)
            else:
                response.close()
                connection.close()

    def _send(
        self, server: Server, url: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send the request; once more by a new connection where an idle one was closed meanwhile."""
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if server.scheme == "http" and self._connections.proxied(server):
            path = f"http://{server}{path}"
        while True:
            connection = self._connections.take(server)
            used = connection.sock is not None
            try:
                self.requests += 1
                connection.request("GET", path, headers={"Host": str(server), **headers})
                return connection, connection.getresponse()
            except FetchError:
                connection.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                if not used:
                    raise broken(server, error) from None


class WebRange:
    """The body of a range: exactly as many bytes as were asked for, or a FetchError."""

    def __init__(self, answer: Answer, length: int) -> None:
        self._answer = answer
        self._left = length

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of the buffer; 0 = the end of the range. Raises FetchError."""
        if not self._left:
            return 0
        count = self._answer.readinto(buffer[: self._left])
        if not count:
            message = f"{self._answer.server} ended its answer {self._left} bytes too early"
            raise FetchError("Unreachable", message, transient=True)
        self._left -= count
        return count


def read_all(answer: Answer, most: int) -> bytes:
    """Read a whole body of at most `most` bytes; raises FetchError."""
    pieces = []
    buffer = memoryview(bytearray(64 * 1024))
    deadline = time.monotonic() + 120
    while count := answer.readinto(buffer):
        pieces.append(bytes(buffer[:count]))
        most -= count
        if most < 0:
            raise FetchError("Unreachable", f"{answer.server} answers with far more than was asked for")
        if time.monotonic() > deadline:
            raise FetchError("Unreachable", f"{answer.server} is too slow: an answer took 120 s", transient=True)
    return b"".join(pieces)


def range_total(answer: Answer, offset: int) -> int | None:
    """Give the size of the file from a 206; None where the answer is the whole file. Raises FetchError."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise FetchError("Corrupt", f"{answer.server} compresses the file on its way")
    if answer.status == _PARTIAL:
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
        if found is None or int(found[1]) != offset:
            raise FetchError("Corrupt", f"{answer.server} answers with another range than was asked for")
        return int(found[3])
    if answer.status == _OK:
        return None
    raise refusal(answer)


def refusal(answer: Answer) -> FetchError:
    """Say what a status means."""
    status, server = answer.status, answer.server
    said = f"(status {status})"
    if answer.headers.get("X-Error-Code") == "RepoNotFound":
        return FetchError("NotFound", f"{server}: there is no such repository, or the token may not see it {said}")
    if answer.headers.get("X-Error-Code") == "GatedRepo":
        return FetchError("Unauthorized", f"{server}: the repository is gated; its owner must let the token in {said}")
    if status in _LOGIN_FAULTS:
        who = "the proxy" if status == 407 else str(server)  # noqa: PLR2004 HTTP
        return FetchError("Unauthorized", f"{who} refuses access: a credential is missing, wrong or not enough {said}")
    if status in _GONE:
        return FetchError("NotFound", f"{server}: there is no such file {said}")
    if status in (_BEYOND_END, _CHANGED):
        return FetchError("Corrupt", f"{server}: the file is not as long as it was said to be, or has changed {said}")
    if status in _LATER or status >= _SERVER_FAULT:
        wait = _retry_after(answer.headers.get("Retry-After", ""))
        what = "asks for fewer requests" if status == _TOO_MANY else "has a fault of its own"
        return FetchError("Unreachable", f"{server} {what} {said}", transient=True, retry_after=wait)
    return FetchError("Unreachable", f"{server} answers in a way that is not understood {said}")


def broken(server: Server, error: Exception) -> FetchError:
    """Say what an error of a connection means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return FetchError("Untrusted", f"the certificate of {server} is not trusted: {error.verify_message}")
    if isinstance(error, TimeoutError):
        return FetchError("Unreachable", f"{server} is silent", transient=True)
    if isinstance(error, OSError) and error.args and "Tunnel connection failed" in str(error):
        return FetchError("Unreachable", f"the proxy does not lead to {server}", transient=True)
    reason = getattr(error, "strerror", None) or type(error).__name__
    return FetchError("Unreachable", f"{server} cannot be reached: {reason}", transient=True)


def _retry_after(text: str) -> float | None:
    """Parse Retry-After, seconds or a date, to seconds from now."""
    text = text.strip()
    if text.isdecimal() and len(text) < 10:  # noqa: PLR2004 more is no wait but a mistake
        return min(float(text), _LONGEST_WAIT)
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(when - time.time(), 0.0), _LONGEST_WAIT)
