"""Where a model file is: the parsed form of `spec.model.source`."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from paddock.api.base import Model

CLAIM_MOUNT = "/model-volume"
"""Where a claim of the user's is mounted in server and inspector pods."""
IMAGE_MOUNT = "/model-image"
"""Where an image that holds models is mounted there."""


class ModelRoot(Model):
    """A folder on the nodes that the administrator declared for file:// sources."""

    path: str
    """As users write it, and where pods mount it."""
    host_path: str
    """As it is called on the node."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file on the nodes, below a model root."""

    path: str
    root: ModelRoot


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A file in a PersistentVolumeClaim of the deployment's namespace."""

    claim: str
    path: str
    """Relative to the claim."""

    @property
    def mounted(self) -> str:
        """Path inside pods."""
        return f"{CLAIM_MOUNT}/{self.path}"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A file in a container image, which the kubelet pulls and mounts as a volume."""

    reference: str
    """REGISTRY/REPOSITORY:TAG or @sha256:DIGEST."""
    path: str
    """Inside the image."""

    @property
    def mounted(self) -> str:
        """Path inside pods."""
        return f"{IMAGE_MOUNT}/{self.path}"


Source = FileSource | ClaimSource | ImageSource
"""What a pod can mount as it is."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a repository on a hub that speaks like Hugging Face: a file, or a quantization; exactly one is given."""

    repository: str
    """OWNER/NAME."""
    revision: str | None = None
    """Branch, tag or commit; the default branch where none is given."""
    file: str | None = None
    """Path in the repository."""
    quantization: str | None = None
    """As file names spell it, for example Q4_K_M; the repository's listing tells the files."""

    @override
    def __str__(self) -> str:
        """Give it as users write it."""
        revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        rest = f":{self.quantization}" if self.quantization else f"/{self.file}"
        return f"hf://{self.repository}{revision}{rest}"


@dataclass(frozen=True, slots=True)
class WebSource:
    """A file on a web server."""

    url: str
    """https, or http where the administrator allows it; may have a query."""

    @override
    def __str__(self) -> str:
        """Give the address without its query, which may hold a signature."""
        return self.url.partition("?")[0]


@dataclass(frozen=True, slots=True)
class BucketSource:
    """An object in a bucket (s3, gs) or container (az)."""

    scheme: Literal["s3", "gs", "az"]
    bucket: str
    key: str

    @override
    def __str__(self) -> str:
        """Give it as users write it."""
        return f"{self.scheme}://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """An artifact in an OCI registry; exactly one of tag and digest is given."""

    registry: str
    """HOST or HOST:PORT."""
    repository: str
    tag: str | None = None
    digest: str | None = None
    """sha256:HEX of the manifest."""
    file: str | None = None
    """Title of a layer, where the artifact holds several models."""

    @override
    def __str__(self) -> str:
        """Give it as users write it."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"oci://{self.registry}/{self.repository}{version}" + (f"/{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class OllamaSource:
    """A model of an Ollama registry; exactly one of tag and digest is given."""

    name: str
    """NAMESPACE/NAME; the namespace of the official models is library."""
    host: str | None = None
    """None: the registry of the settings."""
    tag: str | None = "latest"
    digest: str | None = None
    """sha256:HEX of the manifest."""

    @override
    def __str__(self) -> str:
        """Give it as users write it."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return "ollama://" + (f"{self.host}/" if self.host else "") + self.name + version


RemoteSource = HubSource | WebSource | BucketSource | RegistrySource | OllamaSource
"""What has to be fetched before a pod can use it."""

_IMAGE: Final = "image://"
_SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB: Final = re.compile(rf"(?P<repository>{_SEGMENT}/{_SEGMENT})(?:@(?P<revision>[^/:@]{{1,200}}))?(?P<rest>[/:].*)")
_QUANTIZATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_COMPONENT: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_REGISTRY: Final = re.compile(
    rf"(?P<registry>{_HOST})/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    rf"(?::(?P<tag>{_TAG})|@(?P<digest>{_DIGEST}))(?:/(?P<file>.+))?"
)
_OLLAMA: Final = re.compile(
    rf"(?:(?P<host>{_HOST})/(?=[^/]+/))?(?:(?P<namespace>{_SEGMENT})/)?(?P<name>{_SEGMENT})"
    rf"(?::(?P<tag>{_TAG})|@(?P<digest>{_DIGEST}))?"
)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_MOST: Final = 1024
"""Characters of a source."""
_PRINTABLE: Final = re.compile(r"[!-~]+")
_HIGHEST_PORT: Final = 65535


def parse_source(text: str, roots: Sequence[ModelRoot]) -> Source | str:
    """Give the parsed source, or the reason why it is refused. `text` has passed the CRD's rules."""
    if text.startswith("pvc://"):
        claim, _, path = text.removeprefix("pvc://").partition("/")
        path = posixpath.normpath(path)
        if path.startswith(("/", "..")):
            return f"{text} does not name a file inside the claim"
        return ClaimSource(claim, path)
    if text.startswith(_IMAGE):
        found = _REGISTRY.fullmatch(text.removeprefix(_IMAGE))
        if found is None or not found["file"] or _file_fault(found["file"]):
            return f"{_shown(text)} is not of the form image://REGISTRY/REPOSITORY:TAG/FILE or @sha256:DIGEST/FILE"
        return ImageSource(text.removeprefix(_IMAGE)[: -len(found["file"]) - 1], found["file"])
    path = posixpath.normpath(text.removeprefix("file://"))
    under = [root for root in roots if path.startswith(root.path.rstrip("/") + "/")]
    if under:
        return FileSource(path, max(under, key=lambda root: len(root.path)))
    if not roots:
        return f"{path} cannot be served: no model root is declared (modelRoots in the chart's values)"
    if path in {root.path.rstrip("/") for root in roots}:
        return f"{path} is a model root itself, not a file below it"
    return f"{path} is not below a model root ({', '.join(root.path for root in roots)})"


def parse_remote(text: str) -> RemoteSource | str:
    """Give the parsed source that has to be fetched, or the reason why it is refused."""
    scheme, separator, rest = text.partition("://")
    parser = _PARSERS.get(scheme) if separator else None
    if parser is None:
        known = ", ".join(f"{name}://" for name in (*_PARSERS, "file", "pvc", "image"))
        return f"{_shown(text)} is not a source of models: those begin with one of {known}"
    if len(text) > _MOST or not _PRINTABLE.fullmatch(text):
        return f"{_shown(text)} must be at most {_MOST} printable ASCII characters without spaces"
    return parser(scheme, rest)


def names_one_version(source: RemoteSource) -> bool:
    """Tell whether a source means the same content for ever: it names a commit or a digest."""
    match source:
        case HubSource(revision=str(revision)):
            return _COMMIT.fullmatch(revision) is not None
        case RegistrySource(digest=str()) | OllamaSource(digest=str()):
            return True
        case _:
            return False


def parse_any(text: str, roots: Sequence[ModelRoot]) -> Source | RemoteSource | str:
    """Give the parsed source of any kind, or the reason why it is refused."""
    local = text.startswith(("file://", "pvc://", _IMAGE))
    return parse_source(text, roots) if local else parse_remote(text)


def _shown(text: str) -> str:
    """Give a source in a message without what may be secret: user, password, query."""
    short = re.sub(r"//[^/@]*@", "//", text.partition("?")[0], count=1)
    return repr(short[:100])[1:-1] or "nothing"


def _file_fault(path: str) -> str | None:
    """Say what is wrong with the path of a file in a repository, bucket or artifact."""
    if not path or path.endswith("/"):
        return "names a folder, not a file"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "must not contain empty, . or .. segments"
    return None


def _hub(_scheme: str, rest: str) -> HubSource | str:
    text = f"hf://{rest}"
    found = _HUB.fullmatch(rest)
    if found is None:
        form = "hf://OWNER/NAME[@REVISION]/FILE.gguf or hf://OWNER/NAME[@REVISION]:QUANTIZATION"
        return f"{_shown(text)} is not of the form {form}"
    revision = unquote(found["revision"]) if found["revision"] else None
    if revision and (".." in revision or not _PRINTABLE.fullmatch(revision)):
        return f"{_shown(text)} names no revision of a repository"
    mark, value = found["rest"][0], found["rest"][1:]
    if mark == ":":
        if not _QUANTIZATION.fullmatch(value):
            return f"{_shown(text)}: {value[:64]!r} is not a quantization, such as Q4_K_M"
        return HubSource(found["repository"], revision, quantization=value)
    if fault := _file_fault(value) or (None if value.endswith(".gguf") else "does not name a .gguf file"):
        return f"{_shown(text)} {fault}"
    return HubSource(found["repository"], revision, file=value)


def _web(scheme: str, rest: str) -> WebSource | str:
    text = f"{scheme}://{rest}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return f"{_shown(text)} is not an address"
    if "@" in parts.netloc:
        return f"{_shown(text)} holds a user or password: put it into a Secret"
    if not parts.hostname or (port is not None and not 0 < port <= _HIGHEST_PORT):
        return f"{_shown(text)} names no server"
    if parts.fragment:
        return f"{_shown(text)} must not have a # part"
    if parts.path in ("", "/") or parts.path.endswith("/"):
        return f"{_shown(text)} names a folder, not a file"
    if "/blob/" in parts.path and parts.hostname.endswith("huggingface.co"):
        return f"{_shown(text)} is a web page: on Hugging Face files are below /resolve/, or write hf://OWNER/NAME/FILE"
    return WebSource(text)


def _bucket(scheme: str, rest: str) -> BucketSource | str:
    text = f"{scheme}://{rest}"
    bucket, _, key = rest.partition("/")
    kind = "CONTAINER/BLOB" if scheme == "az" else "BUCKET/KEY"
    if not _BUCKET.fullmatch(bucket):
        return f"{_shown(text)} is not of the form {scheme}://{kind}"
    if fault := _file_fault(key):
        return f"{_shown(text)} {fault}"
    match scheme:
        case "s3" | "gs" | "az":
            return BucketSource(scheme, bucket, key)
        case _:
            return f"{scheme} is no scheme of buckets"


def _registry(_scheme: str, rest: str) -> RegistrySource | str:
    text = f"oci://{rest}"
    found = _REGISTRY.fullmatch(rest)
    if found is None:
        form = "oci://REGISTRY/REPOSITORY:TAG or @sha256:DIGEST, then /FILE where there are several"
        return f"{_shown(text)} is not of the form {form}"
    if found["file"] and (fault := _file_fault(found["file"])):
        return f"{_shown(text)} {fault}"
    return RegistrySource(found["registry"], found["repository"], found["tag"], found["digest"], found["file"])


def _ollama(_scheme: str, rest: str) -> OllamaSource | str:
    text = f"ollama://{rest}"
    found = _OLLAMA.fullmatch(rest)
    if found is None:
        return f"{_shown(text)} is not of the form ollama://[HOST/][NAMESPACE/]NAME[:TAG]"
    host, namespace = found["host"], found["namespace"]
    tag = None if found["digest"] else found["tag"] or "latest"
    return OllamaSource(f"{namespace or 'library'}/{found['name']}", host, tag, found["digest"])


_PARSERS: Final[dict[str, Callable[[str, str], RemoteSource | str]]] = {
    "hf": _hub,
    "https": _web,
    "http": _web,
    "s3": _bucket,
    "gs": _bucket,
    "az": _bucket,
    "oci": _registry,
    "ollama": _ollama,
}
