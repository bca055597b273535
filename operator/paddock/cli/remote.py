"""Files on web servers, read piece by piece by HTTP range requests; never more than what was asked for."""

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from typing_extensions import override

from paddock import __version__
from paddock.cli.problem import Problem
from paddock.core.gguf import FIRST_READ

SECONDS: Final = 20.0
"""How long the server may be silent."""
WHOLE_SECONDS: Final = 120.0
"""How long one request may take in all."""

_PIECE: Final = 256 * 1024
_MOST_REDIRECTS: Final = 5
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_OK, _PARTIAL, _BEYOND_END = 200, 206, 416
_MEANING: Final = {
    401: "the server wants a login; download the file and name the copy",
    403: "the server refuses access; download the file by a program that may, and name the copy",
    404: "there is no such file",
    429: "the server asks for fewer requests; try again later",
}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, and none from an encrypted address to a plain one."""

    max_redirections = _MOST_REDIRECTS

    @override
    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise Problem(f"{req.full_url} redirects to {scheme}://, which is not followed from {req.type}://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Remote:
    """A file on a web server. Every method raises Problem."""

    def __init__(self, url: str, *, seconds: float = SECONDS, whole_seconds: float = WHOLE_SECONDS) -> None:
        """Ask for the first piece, which also tells the size."""
        self.url = url
        self.requests = 0
        self._seconds, self._whole_seconds = seconds, whole_seconds
        self._opener = _opener()
        self._address = url
        """Where the redirects led to."""
        self._ranges = True
        self.size = 0
        self._pieces: dict[int, bytes] = {}
        self._pieces[0] = self._fetch(0, FIRST_READ)

    @property
    def name(self) -> str:
        """Name of the file, the last part of the address."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    def sibling(self, name: str) -> str:
        """Give the address of another file beside this one."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + quote(name)))

    def read(self, offset: int, length: int) -> bytes:
        """Give at most `length` bytes from `offset`; fewer only at the end of the file."""
        length = max(0, min(length, self.size - offset))
        for start, piece in self._pieces.items():
            if start <= offset and offset + length <= start + len(piece):
                return piece[offset - start : offset - start + length]
        if length == 0:
            return b""
        return self._fetch(offset, length)

    def _fetch(self, offset: int, length: int) -> bytes:
        if not self._ranges:
            raise Problem(f"{self._host} gives whole files only (no range requests); download it and name the copy")
        self.requests += 1
        asked = f"bytes={offset}-{offset + length - 1}"
        headers = {"Range": asked, "Accept-Encoding": "identity", "User-Agent": f"paddock/{__version__}"}
        request = urllib.request.Request(self._address, headers=headers)  # noqa: S310 - the opener knows http and https alone
        try:
            with self._opener.open(request, timeout=self._seconds) as response:
                self._take_size(response, offset)
                return self._body(response, min(length, self.size - offset))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _BEYOND_END and offset == 0:
                    return b""  # an empty file
                raise Problem(self._refusal(error)) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise Problem(f"{self.url} cannot be read: {_reason(error)}") from error

    def _take_size(self, response: Any, offset: int) -> None:
        self._address = response.url
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise Problem(f"{self._host} compresses the file on its way; download it and name the copy")
        if response.status == _PARTIAL:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
            if found is None or int(found[1]) != offset:
                raise Problem(f"{self._host} answers a range request without saying which range, or with another")
            size = int(found[3])
        else:
            length = response.headers.get("Content-Length") or ""
            self._ranges = False
            if response.status != _OK or offset or not length.isdecimal():
                raise Problem(f"{self._host} does not tell how large the file is (status {response.status})")
            if response.headers.get_content_type() == "text/html":
                raise Problem(f"{self.url} is a web page, not a file{_hint(self.url)}")
            size = int(length)
        if self.size and size != self.size:
            raise Problem(f"{self.url} has changed while it was read")
        self.size = size

    def _body(self, response: Any, length: int) -> bytes:
        deadline = time.monotonic() + self._whole_seconds
        pieces = []
        while length > 0 and (piece := response.read(min(length, _PIECE))):
            pieces.append(piece)
            length -= len(piece)
            if time.monotonic() > deadline:
                raise Problem(f"{self._host} is too slow: a piece took more than {self._whole_seconds:g} s")
        if length:
            raise Problem(f"{self._host} ended its answer too early; try again")
        return b"".join(pieces)

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        if 300 <= error.code < 400:  # noqa: PLR2004 HTTP
            return f"{self.url}: its redirects lead nowhere, or to where they may not (status {error.code})"
        meaning = _MEANING.get(error.code, error.reason or "no reason given")
        return f"{self.url}: {meaning} (status {error.code}){_hint(self.url)}"

    @property
    def _host(self) -> str:
        return urlsplit(self._address).netloc


def _opener() -> urllib.request.OpenerDirector:
    """Give an opener for http and https only, by the proxies of the environment."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _hint(url: str) -> str:
    return "; on Hugging Face, files are below /resolve/, not /blob/" if "/blob/" in url else ""


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "the server is silent"
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)
