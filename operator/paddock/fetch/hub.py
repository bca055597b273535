"""hf://: repositories of a hub that speaks like Hugging Face. One listing gives commit, sizes, digests and licence."""

from typing import Any
from urllib.parse import quote

from paddock.core.listing import files_of_quantization, siblings_of
from paddock.core.source import HubSource
from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from paddock.fetch.remote import Remote, RemoteFile, WebTransport, safe_name
from paddock.fetch.web import Fixed, Web


def open_hub(source: HubSource, credentials: Credentials, web: Web) -> Remote:
    """Look at a repository, pinned to the commit that its revision means now. Raises FetchError."""
    authorizer = Fixed(f"Bearer {credentials.token}" if credentials.token else None)
    hub = web.settings.hub
    revision = quote(source.revision or "main", safe="")
    listing = web.json(f"{hub}/api/models/{source.repository}/revision/{revision}?blobs=true", authorizer)
    try:
        commit = str(listing["sha"])
        entries = {str(entry["rfilename"]): entry for entry in listing["siblings"]}
    except (KeyError, TypeError):
        raise FetchError("Unreachable", f"{hub} does not list {source.repository} in the way of a hub") from None
    paths = _wanted(source, list(entries))
    files = [_file(f"{hub}/{source.repository}/resolve/{commit}/{quote(path)}", entries[path]) for path in paths]
    pinned = HubSource(source.repository, commit, file=paths[0])
    return Remote(str(source), str(pinned), files, WebTransport(web, authorizer), _license(listing))


def _wanted(source: HubSource, names: list[str]) -> list[str]:
    if source.quantization is not None:
        found = files_of_quantization(names, source.quantization)
        if isinstance(found, str):
            raise FetchError("NotFound", f"{source}: {found}")
        return found
    wanted = siblings_of(source.file or "")
    missing = [name for name in wanted if name not in names]
    if missing:
        there = [name for name in sorted(names) if name.endswith(".gguf")][:12]
        hint = f"; there are {', '.join(there)}" if there else "; it holds no .gguf files"
        raise FetchError("NotFound", f"{source}: the repository has no {missing[0]}{hint}")
    return wanted


def _file(address: str, entry: dict[str, Any]) -> RemoteFile:
    name = safe_name(str(entry["rfilename"]))
    large = entry.get("lfs") or {}
    digest = str(large.get("sha256") or large.get("oid") or "").removeprefix("sha256:")
    size = large.get("size", entry.get("size"))
    if type(size) is not int or size < 0:
        raise FetchError("Unreachable", f"the hub does not tell how large {name} is")
    known = len(digest) == 64 and set(digest) <= set("0123456789abcdef")  # noqa: PLR2004 digits of SHA-256
    blob = entry.get("blobId")
    return RemoteFile(
        name, size, address, digest=f"sha256:{digest}" if known else None, version=str(blob) if blob else None
    )


def _license(listing: dict[str, Any]) -> str | None:
    card = listing.get("cardData")
    named = card.get("license") if isinstance(card, dict) else None
    if isinstance(named, str):
        return named[:100]
    tags = [tag for tag in listing.get("tags") or [] if isinstance(tag, str) and tag.startswith("license:")]
    return tags[0].removeprefix("license:")[:100] if tags else None
