"""`paddock-fetch header`: what a source is, from a few ranges of its files; never the weights."""

from paddock.api.answer import SourceAnswer
from paddock.api.fetched import Origin, SourceFile
from paddock.api.report import HeaderFault
from paddock.core.gguf import GgufError, GgufMetadata, read_gguf
from paddock.core.header import summary_of
from paddock.core.quantize import quantization
from paddock.core.source import RemoteSource
from paddock.core.split import read_parts
from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from paddock.fetch.get import open_patiently
from paddock.fetch.remote import Remote
from paddock.fetch.settings import Settings


def header(source: RemoteSource, credentials: Credentials, settings: Settings) -> SourceAnswer:
    """Look at a source and read its headers; what is wrong is a part of the answer, never an exception."""
    try:
        with open_patiently(source, credentials, settings) as remote:
            return _answer(remote)
    except FetchError as error:
        return SourceAnswer(failure=error.said())


def _answer(remote: Remote) -> SourceAnswer:
    files = [SourceFile(name=one.name, bytes=one.size, digest=one.digest, etag=one.etag) for one in remote.files]
    key = remote.key
    origin = Origin(
        source=remote.source,
        pinned=remote.pinned,
        key=key,
        path=f"models/{key}/{files[0].name}",
        files=files,
        bytes=sum(file.bytes for file in files),
        license=remote.license,
    )
    try:
        parts = read_parts(files[0].name, lambda name: _read(remote, name))
        summary = summary_of(parts)
    except GgufError as error:
        return SourceAnswer(origin=origin, fault=HeaderFault(code=error.kind, message=f"{remote.source}: {error}"))
    named = parts[0].values.get("general.license")
    origin = origin.model_copy(
        update={
            "license": named[:100] if isinstance(named, str) else remote.license,
            "quantization": quantization(parts, summary.file_type),
        }
    )
    return SourceAnswer(origin=origin, summary=summary)


def _read(remote: Remote, name: str) -> GgufMetadata:
    found = [file for file in remote.files if file.name == name]
    if not found:
        raise GgufError("ModelUnsupported", f"{name}, another part of the model, does not belong to the source")
    return read_gguf(lambda offset, length: remote.read(found[0], offset, length), found[0].size)
