"""Where a model file is: the parsed form of `spec.model.source`."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from paddock.api.base import Model

CLAIM_MOUNT = "/model-volume"
"""Where a claim of the user's is mounted in server and inspector pods."""


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


Source = FileSource | ClaimSource


def parse_source(text: str, roots: Sequence[ModelRoot]) -> Source | str:
    """Give the parsed source, or the reason why it is refused. `text` has passed the CRD's rules."""
    if text.startswith("pvc://"):
        claim, _, path = text.removeprefix("pvc://").partition("/")
        path = posixpath.normpath(path)
        if path.startswith(("/", "..")):
            return f"{text} does not name a file inside the claim"
        return ClaimSource(claim, path)
    path = posixpath.normpath(text.removeprefix("file://"))
    under = [root for root in roots if path.startswith(root.path.rstrip("/") + "/")]
    if under:
        return FileSource(path, max(under, key=lambda root: len(root.path)))
    if not roots:
        return f"{path} cannot be served: no model root is declared (modelRoots in the chart's values)"
    return f"{path} is not below a model root ({', '.join(root.path for root in roots)})"
