"""Images as files: the OCI layout of all built images, a layer put on top, a stream that containerd can import."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Manifest:
    """Where an image's manifest lies: sha256:... and its size in bytes."""

    digest: str
    size: int


class Layout:
    """A folder in OCI image layout. Layers are not compressed: they only travel within this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, tag: str) -> Manifest | None:
        """Return the manifest that was pushed under `tag`."""
        index = self.folder / "index.json"
        listed = json.loads(index.read_text())["manifests"] if index.exists() else []
        for each in listed:
            if each.get("annotations", {}).get("org.opencontainers.image.ref.name") == tag:
                return Manifest(each["digest"], each["size"])
        return None

    def unpack(self, tag: str) -> Manifest:
        """Store the layers of the image just pushed under `tag` uncompressed, and return its new manifest.

        buildah compresses whatever it pushes, but skips a layer that is there under the digest of its plain form: so
        only layers that are really new cost time at the next push.
        """
        pushed = self.find(tag)
        if pushed is None:
            raise KeyError(tag)
        content = self.read(pushed.digest)
        plain = self.read(content["config"]["digest"])["rootfs"]["diff_ids"]
        for layer, digest in zip(content["layers"], plain, strict=True):
            if layer["digest"] != digest:
                with gzip.open(self.blob(layer["digest"])) as source, self.blob(digest).open("wb") as target:
                    shutil.copyfileobj(source, target)
            layer |= {"mediaType": _LAYER, "digest": digest, "size": self.blob(digest).stat().st_size}
        manifest = self._write(json.dumps(content).encode())
        index = json.loads((self.folder / "index.json").read_text())
        for each in index["manifests"]:
            if each["digest"] == pushed.digest:
                each |= {"digest": manifest.digest, "size": manifest.size}
        (self.folder / "index.json").write_text(json.dumps(index))
        return manifest

    def blob(self, digest: str) -> Path:
        """Return the file of a blob."""
        return self.folder / "blobs" / digest.replace(":", "/")

    def read(self, digest: str) -> Any:
        """Return a blob's JSON."""
        return json.loads(self.blob(digest).read_text())

    def blobs_of(self, manifest: Manifest) -> list[str]:
        """Return all digests that the image consists of, its manifest first."""
        content = self.read(manifest.digest)
        return [manifest.digest, content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]

    def put_on_top(self, manifest: Manifest, files: Mapping[str, bytes]) -> Manifest:
        """Return the image with one more layer that holds `files` (path in the image: content)."""
        layer = self._write(_tar(files))
        content = self.read(manifest.digest)
        config = self.read(content["config"]["digest"])
        config["rootfs"]["diff_ids"].append(layer.digest)
        config.setdefault("history", []).append({"created_by": f"files of the node: {', '.join(files)}"})
        written = self._write(json.dumps(config).encode())
        content["config"] |= {"digest": written.digest, "size": written.size}
        content["layers"].append({"mediaType": _LAYER, "digest": layer.digest, "size": layer.size})
        return self._write(json.dumps(content).encode())

    def stream(self, images: Mapping[str, Manifest], have: Iterable[str], target: IO[bytes]) -> None:
        """Write an archive of `images` (full name: manifest) without the blobs that the receiver has."""
        known = set(have)
        index = {
            "schemaVersion": 2,
            "manifests": [
                {
                    "mediaType": self.read(manifest.digest)["mediaType"],
                    "digest": manifest.digest,
                    "size": manifest.size,
                    "annotations": {"io.containerd.image.name": name},
                }
                for name, manifest in images.items()
            ],
        }
        with tarfile.open(fileobj=target, mode="w|") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(archive, "index.json", json.dumps(index).encode())
            for manifest in images.values():
                for digest in self.blobs_of(manifest):
                    if digest not in known:
                        known.add(digest)
                        archive.add(self.blob(digest), f"blobs/{digest.replace(':', '/')}")

    def prune(self, keep: Iterable[Manifest]) -> None:
        """Delete every blob that none of the images `keep` and none of the tags needs."""
        index = json.loads((self.folder / "index.json").read_text())["manifests"]
        needed = {
            digest
            for each in (*keep, *(Manifest(i["digest"], i["size"]) for i in index))
            for digest in self.blobs_of(each)
        }
        for file in (self.folder / "blobs" / "sha256").iterdir():
            if f"sha256:{file.name}" not in needed:
                file.unlink()

    def _write(self, content: bytes) -> Manifest:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if not self.blob(digest).exists():
            self.blob(digest).parent.mkdir(parents=True, exist_ok=True)
            self.blob(digest).write_bytes(content)
        return Manifest(digest, len(content))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(content))


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(files.items()):
            _add(archive, name.lstrip("/"), content)
    return buffer.getvalue()
