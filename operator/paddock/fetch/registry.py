"""oci:// and ollama://: artifacts in registries, each file a blob named by its SHA-256."""

import base64
import hashlib
import json
import re
from typing import Any, Final
from urllib.parse import quote, urlencode

from paddock.core.listing import parts_of, siblings_of
from paddock.core.source import OllamaSource, RegistrySource
from paddock.fetch.connections import server_of
from paddock.fetch.credentials import Credentials, Login
from paddock.fetch.failures import FetchError
from paddock.fetch.remote import Remote, RemoteFile, WebTransport, safe_name
from paddock.fetch.web import Web

_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ACCEPT: Final = ", ".join(
    [
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        *_INDEXES,
    ]
)
_TITLE: Final = "org.opencontainers.image.title"
_LICENSE: Final = "org.opencontainers.image.licenses"
_DOCKER_HUB: Final = "registry-1.docker.io"
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER: Final = re.compile(r'([a-z]+)="([^"]*)"')


class RegistryAuthorizer:
    """Gets tokens in the way of registries: the answer 401 says where, user and password buy one."""

    def __init__(self, web: Web, login: Login | None, token: str | None) -> None:
        self._web = web
        self._login = login
        self._header = f"Bearer {token}" if token else None

    def header(self) -> str | None:
        """Give the value of Authorization."""
        return self._header

    def renew(self, challenge: str) -> bool:
        """Get a token as the challenge says."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._login is not None:
            self._header = basic(self._login.username, self._login.password)
            return True
        asked = dict(_PARAMETER.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in asked:
            return False
        query = urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        answer = self._web.json(f"{asked['realm']}?{query}", _Login(self._login))
        token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
        if not isinstance(token, str):
            return False
        self._header = f"Bearer {token}"
        return True


class _Login:
    """Says user and password to the server of tokens."""

    def __init__(self, login: Login | None) -> None:
        self._login = login

    def header(self) -> str | None:
        return None if self._login is None else basic(self._login.username, self._login.password)

    def renew(self, challenge: str) -> bool:  # noqa: ARG002 - the protocol's
        return False


def open_registry(source: RegistrySource, credentials: Credentials, web: Web) -> Remote:
    """Look at an artifact, pinned to the digest that its tag means now. Raises FetchError."""
    base = _base(source.registry, web) + f"/{source.repository}"
    authorizer = RegistryAuthorizer(web, _login(source.registry, credentials), credentials.token)
    manifest, digest = _manifest(base, source.tag, source.digest, web, authorizer)
    layers = {_title(layer, source.repository): layer for layer in _layers(manifest) if _is_file(layer)}
    names = _wanted(source, list(layers))
    pinned = RegistrySource(source.registry, source.repository, digest=digest, file=source.file)
    files = [_file(name, layers[name], base) for name in names]
    annotations = manifest.get("annotations") or {}
    return Remote(str(source), str(pinned), files, WebTransport(web, authorizer), _text(annotations.get(_LICENSE)))


def open_ollama(source: OllamaSource, credentials: Credentials, web: Web) -> Remote:
    """Look at a model of an Ollama registry, pinned to the digest that its tag means now. Raises FetchError."""
    host = source.host or server_of(web.settings.ollama)
    base = (_base(str(host), web) if source.host else f"{web.settings.ollama}/v2") + f"/{source.name}"
    authorizer = RegistryAuthorizer(web, _login(str(host), credentials), credentials.token)
    manifest, digest = _manifest(base, source.tag, source.digest, web, authorizer)
    models = [layer for layer in _layers(manifest) if layer.get("mediaType") == _OLLAMA_MODEL]
    if len(models) != 1:
        raise FetchError("NotFound", f"{source} has {len(models)} files of weights; one can be served")
    name = source.name.rpartition("/")[2] + ".gguf"  # the same for tag and digest
    pinned = OllamaSource(source.name, source.host, None, digest)
    return Remote(str(source), str(pinned), [_file(name, models[0], base)], WebTransport(web, authorizer))


def _base(registry: str, web: Web) -> str:
    """Give the address of the registry's API, or of its mirror."""
    for pair in web.settings.mirrors:
        host, _, address = pair.partition("=")
        if host == registry:
            server = server_of(address)
            path = address.partition("://")[2].partition("/")[2]
            return f"{server.scheme}://{server}/v2" + (f"/{path}" if path else "")
    return f"https://{_DOCKER_HUB if registry in ('docker.io', 'index.docker.io') else registry}/v2"


def _login(registry: str, credentials: Credentials) -> Login | None:
    if registry in credentials.logins:
        return credentials.logins[registry]
    if registry == "docker.io" and "index.docker.io" in credentials.logins:
        return credentials.logins["index.docker.io"]
    if credentials.username and credentials.password:
        return Login(credentials.username, credentials.password)
    return None


def _manifest(
    base: str, tag: str | None, digest: str | None, web: Web, authorizer: RegistryAuthorizer
) -> tuple[dict[str, Any], str]:
    raw, answer = web.bytes(f"{base}/manifests/{quote(digest or tag or '', safe=':')}", authorizer, {"Accept": _ACCEPT})
    found = "sha256:" + hashlib.sha256(raw).hexdigest()
    if digest is not None and found != digest:
        raise FetchError("Corrupt", f"{answer.server} gives a manifest with the digest {found} for {digest}")
    try:
        manifest = json.loads(raw)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise FetchError("Unreachable", f"{answer.server} does not answer with a manifest")
    if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
        digests = [_text(one.get("digest")) or "" for one in manifest.get("manifests", []) if isinstance(one, dict)]
        if digest is not None or len(digests) != 1 or not _DIGEST.fullmatch(digests[0]):
            message = f"{base.partition('/v2/')[2]} is a list of {len(digests)} images, not an artifact with a model"
            raise FetchError("NotFound", message)
        return _manifest(base, None, digests[0], web, authorizer)
    return manifest, found


def _layers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    layers = manifest.get("layers")
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _is_file(layer: dict[str, Any]) -> bool:
    """Tell a model's file from the archives of an image's layers."""
    kind = str(layer.get("mediaType", ""))
    return _named(layer).endswith(".gguf") or ("gguf" in kind and "tar" not in kind)


def _named(layer: dict[str, Any]) -> str:
    annotations = layer.get("annotations")
    return str(annotations.get(_TITLE, "")) if isinstance(annotations, dict) else ""


def _title(layer: dict[str, Any], repository: str) -> str:
    digest = str(layer.get("digest", "")).removeprefix("sha256:")
    return _named(layer) or f"{repository.rpartition('/')[2]}-{digest[:12]}.gguf"


def _wanted(source: RegistrySource, names: list[str]) -> list[str]:
    if source.file is not None:
        wanted = siblings_of(source.file)
        if any(name not in names for name in wanted):
            there = ", ".join(sorted(names)) or "no files of models"
            raise FetchError("NotFound", f"{source}: the artifact has no such file; it holds {there}")
        return wanted
    models = [name for name in names if "mmproj" not in name.lower()]
    if not models:
        raise FetchError("NotFound", f"{source} holds no model: no layer is a .gguf file")
    stems = {siblings_of(name)[0] for name in models}
    if len(stems) > 1:
        message = f"{source} holds {len(stems)} models: add /FILE for one of {', '.join(sorted(stems))}"
        raise FetchError("NotFound", message)
    found = parts_of(models)
    if isinstance(found, str):
        raise FetchError("NotFound", f"{source}: {found}")
    return found


def _file(name: str, layer: dict[str, Any], base: str) -> RemoteFile:
    digest, size = _text(layer.get("digest")) or "", layer.get("size")
    if not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise FetchError("Unreachable", f"the manifest does not tell size and SHA-256 of {name}")
    return RemoteFile(safe_name(name), size, f"{base}/blobs/{digest}", digest=digest)


def basic(username: str, password: str) -> str:
    """Give the value of Authorization for a user and a password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _text(value: object) -> str | None:
    return value[:100] if isinstance(value, str) else None
