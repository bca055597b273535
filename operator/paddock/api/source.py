"""Words about model files: where they come from, where they are kept, and what is known of them."""

from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.selector import ATOMIC, Labels, like, rules

SCHEMES = ("file:///", "pvc://", "image://", "hf://", "https://", "s3://", "gs://", "az://", "oci://", "ollama://")
"""How sources begin; all but the first three are fetched."""
DIGEST_PATTERN = "^[0-9a-f]{64}$"

SOURCE_RULES = rules(
    (
        " || ".join(f"self.startsWith('{scheme}')" for scheme in SCHEMES),
        "source must be file:///PATH (a folder that the administrator declared), pvc://CLAIM/PATH, image://, hf://, https://, s3://, gs://, az://, oci:// or ollama://",
    ),
    (
        "!self.contains('/../') && !self.endsWith('/..') && !self.contains('/./')",
        "source must not contain . or .. segments",
    ),
    ("!self.endsWith('/')", "source must name a file, not a folder"),
    (
        "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/].*$')",
        "a pvc source is pvc://CLAIM/PATH: the claim's name, then the path of the file in it",
    ),
    (
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[^/:@]+)?(/[^:@]+[.]gguf|:[A-Za-z0-9._-]+)$')",
        "an hf source is hf://ORG/REPO[@REVISION]/FILE.gguf or hf://ORG/REPO[@REVISION]:QUANTIZATION",
    ),
    (
        "!self.startsWith('https://') || self.matches('^https://[^/@]+/[^#]+$')",
        "an https source is https://HOST/PATH: user names and passwords belong in the Secret of model.secretRef",
    ),
    (
        "!self.matches('^(s3|gs|az)://') || self.matches('^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*/[^/].*$')",
        "an object is s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY",
    ),
    (
        "!self.startsWith('oci://') || self.matches('^oci://[^/@]+/[^@]+(@sha256:[0-9a-f]{64}(/.+)?)?$')",
        "an oci source is oci://REGISTRY/NAME:TAG or oci://REGISTRY/NAME@sha256:DIGEST",
    ),
    (
        "!self.startsWith('image://') || self.matches('^image://[^/@]+/[^@]+[.]gguf$|^image://[^/@]+/[^@]+@sha256:[0-9a-f]{64}/.+[.]gguf$')",
        "an image source is image://REGISTRY/NAME:TAG/FILE.gguf or image://REGISTRY/NAME@sha256:DIGEST/FILE.gguf",
    ),
    ("self.matches('^[!-~]+$')", "source must be printable ASCII without spaces"),
)

_IN_PLACE = "self.source.matches('^(file|pvc|image)://')"
COMPANION_RULES = rules(
    (
        f"!(has(self.secretRef) || has(self.sha256)) || !{_IN_PLACE}",
        "secretRef and sha256 are for sources that are fetched, not for file://, pvc:// and image://",
    ),
)

MODEL_RULES = rules(
    (
        f"!(has(self.secretRef) || has(self.sha256) || has(self.prefetch)) || !{_IN_PLACE}",
        "secretRef, sha256 and prefetch are for sources that are fetched, not for file://, pvc:// and image://",
    ),
    (
        f"!has(self.cache) || !{_IN_PLACE} || has(self.projector) || has(self.loraAdapters) || has(self.draft)",
        "cache is for sources that are fetched, not for file://, pvc:// and image://",
    ),
    (
        "!has(self.prefetch) || !has(self.cache)",
        "prefetch fills the nodes' own cache: leave out cache.claim, of which there is one",
    ),
)


class SecretName(Model):
    """The name of a Secret of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name. Its keys are files for the pods that fetch, and nothing else reads them; docs/models.md lists them."""


class ModelCache(Model):
    """Where the files of the model are kept, in place of the nodes' own cache."""

    claim: Annotated[str, Field(min_length=1, max_length=253)]
    """A PersistentVolumeClaim of the same namespace that pods may write to. Several deployments may share it."""


class Prefetch(Model):
    """Nodes that get the files before a replica is there."""

    node_selector: Labels = {}
    """Labels that such a node must have; without any, every node with a cache."""


Sha256 = Annotated[
    str,
    Field(
        max_length=64,
        pattern=DIGEST_PATTERN,
        json_schema_extra=like(DIGEST_PATTERN, "sha256 is 64 lower-case hexadecimal digits"),
    ),
]


SourceText = Annotated[str, Field(max_length=1024, min_length=1, json_schema_extra=SOURCE_RULES)]


class Companion(Model):
    """A file that is served together with the model. Fetched ones are kept in the same cache."""

    model_config = {"json_schema_extra": COMPANION_RULES}

    source: SourceText
    """Where the GGUF file is, as model.source says it; each file may come from elsewhere."""
    secret_ref: SecretName | None = None
    """Secret with what the source asks for."""
    sha256: Sha256 | None = None
    """What the fetched file must be; of a source of several files, the first."""


class LoraAdapter(Companion):
    """A LoRA adapter of the model."""

    scale: Annotated[float, Field(ge=-100, le=100)] = 1.0
    """How strongly it is applied. Requests may choose otherwise (llama-server's field lora)."""


class ModelSpec(Model):
    """Which model."""

    model_config = {"json_schema_extra": MODEL_RULES}

    source: SourceText
    """Where the GGUF file is: `file:///models/x.gguf` (below a model root of the nodes), `pvc://claim/path/x.gguf` (in a
    claim of the namespace), `image://registry/name:tag/x.gguf` (in a container image), or where it is fetched from: `hf://`, `https://`, `s3://` and others; see docs/models.md."""
    secret_ref: SecretName | None = None
    """Secret with what the source asks for: a token, keys, or a registry's login."""
    sha256: Sha256 | None = None
    """What the fetched file must be; of a source of several files, the first."""
    cache: ModelCache | None = None
    """A claim in which fetched files are kept. By default the cache of the node, where the administrator has one."""
    prefetch: Prefetch | None = None
    """Nodes that get the files before a replica is there. A change moves nothing that runs."""
    projector: Companion | None = None
    """Projector (mmproj) for images or sound, on the model's device."""
    lora_adapters: Annotated[list[LoraAdapter], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    """LoRA adapters of the model, beside its tensors."""
    draft: Companion | None = None
    """Smaller model of the same vocabulary that drafts tokens for this one to check, on the same device."""


CompanionKind = Literal["Projector", "Adapter", "Draft"]


class CompanionStatus(Model):
    """What is known of the file of a companion."""

    kind: CompanionKind
    """What it is for."""
    source: str
    """The source that this is about, without a query."""
    pinned: str | None = None
    """The source by which new replicas fetch the same content."""
    key: str | None = None
    """Name of the content in caches."""
    path: str | None = None
    """Of the first file, in caches."""
    architecture: str
    """general.architecture of the header."""
    parameters: int
    """Elements of all tensors."""
    files: int
    """Number of files."""
    size_bytes: int
    """Of all files."""
    digest: str | None = None
    """What the source says the content is."""


class Progress(Model):
    """How far the files are fetched, of the replica that is furthest behind."""

    text: str
    """Per cent and speed, for people."""
    percent: int
    """Whole per cent of all bytes."""
    bytes_per_second: int | None = None
    """Over the last seconds."""


class ModelStatus(Model):
    """What is known of the model's files."""

    source: str
    """The source that this is about, without a query."""
    pinned: str | None = None
    """The source by which new replicas fetch the same content: with the commit, or the digest."""
    key: str | None = None
    """Name of the content in caches."""
    path: str | None = None
    """Of the first file, in caches."""
    architecture: str
    """general.architecture of the header."""
    parameters: int
    """Elements of all tensors."""
    quantization: str | None = None
    """As the file names it, for example Q4_K_M."""
    context_length: int | None = None
    """Tokens of context that it was trained with."""
    files: int
    """Number of files."""
    size_bytes: int
    """Of all files."""
    digest: str | None = None
    """What the source says the content is: sha256:..., or another identity, such as an ETag."""
    license: str | None = None
    """general.license of the header."""
    progress: Progress | None = None
    """While files are fetched."""
    nodes: Annotated[list[str], Field(json_schema_extra=ATOMIC)] = []
    """Nodes whose cache has the files, ten at most."""
    companions: Annotated[list[CompanionStatus], Field(json_schema_extra=ATOMIC)] = []
    """Projector, adapters and draft model, in this order."""
