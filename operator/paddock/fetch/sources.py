"""Opens a source: which files it has and which content they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from paddock.core.gguf import FIRST_READ
from paddock.core.listing import siblings_of
from paddock.core.source import BucketSource, HubSource, OllamaSource, RegistrySource, RemoteSource, WebSource
from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from paddock.fetch.hub import open_hub
from paddock.fetch.registry import basic, open_ollama, open_registry
from paddock.fetch.remote import Remote, RemoteFile, WebTransport, safe_name
from paddock.fetch.settings import Settings
from paddock.fetch.web import Answer, Authorizer, Fixed, Web, WebRange, range_total

_LATER_PARTS: Final = 64 * 1024
"""Bytes of a later part of a split model that come with its size: they hold few metadata."""
_BEYOND_END: Final = 416


@contextmanager
def open_source(source: RemoteSource, credentials: Credentials, settings: Settings) -> Iterator[Remote]:
    """Look at a source: its files, sizes and identity. Raises FetchError; so do all methods of what it gives."""
    if isinstance(source, BucketSource):
        from paddock.fetch.buckets import open_bucket  # noqa: PLC0415 - 20 MB of memory that others need not have

        yield open_bucket(source, credentials, settings)
        return
    web = Web(settings)
    try:
        match source:
            case HubSource():
                yield open_hub(source, credentials, web)
            case RegistrySource():
                yield open_registry(source, credentials, web)
            case OllamaSource():
                yield open_ollama(source, credentials, web)
            case WebSource():
                yield _open_web(source, credentials, web)
    finally:
        web.close()


def _open_web(source: WebSource, credentials: Credentials, web: Web) -> Remote:
    authorizer = _authorizer(credentials)
    parts = urlsplit(source.url)
    folder, _, last = parts.path.rpartition("/")
    files: list[RemoteFile] = []
    heads: dict[str, bytes] = {}
    for name in siblings_of(safe_name(unquote(last))):
        path = parts.path if len(siblings_of(name)) == 1 else f"{folder}/{quote(name)}"
        url = urlunsplit(parts._replace(path=path))
        file, head = _look(name, url, web, authorizer, _LATER_PARTS if files else FIRST_READ)
        files.append(file)
        heads[name] = head
    return Remote(str(source), str(source), files, WebTransport(web, authorizer), heads=heads)


def _authorizer(credentials: Credentials) -> Authorizer:
    if credentials.token:
        return Fixed(f"Bearer {credentials.token}")
    if credentials.username and credentials.password:
        return Fixed(basic(credentials.username, credentials.password))
    return Fixed(None)


def _look(name: str, url: str, web: Web, authorizer: Authorizer, length: int) -> tuple[RemoteFile, bytes]:
    """Ask for the first bytes, which also tells size and version."""
    with web.get(url, authorizer, {"Range": f"bytes=0-{length - 1}"}, remember=True) as answer:
        if answer.status == _BEYOND_END:
            raise FetchError("Corrupt", f"{name} is empty at its source")
        total = range_total(answer, 0)
        ranges = total is not None
        size = answer.length if total is None else total
        if size is None:
            raise FetchError("Unreachable", f"{answer.server} does not tell how large {name} is")
        if not ranges and answer.headers.get_content_type() == "text/html":
            raise FetchError("NotFound", f"{name} is a web page at {answer.server}, not a file")
        file = RemoteFile(name, size, url, etag=answer.etag, version=answer.headers.get("Last-Modified"), ranges=ranges)
        return file, _head(answer, min(length, size))


def _head(answer: Answer, length: int) -> bytes:
    whole = bytearray(length)
    view, body = memoryview(whole), WebRange(answer, length)
    while view and (count := body.readinto(view)):
        view = view[count:]
    return bytes(whole)
