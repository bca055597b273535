"""The cache of a node: a folder of files named by their content, and of models made of links to them.

    blobs/sha256-HEX        whole and checked files, never changed
    models/KEY/NAME         hard links to them, all parts of a model together; .model.json says what it is
    identities/ID           for sources without digests: which blob that version of a file became
    sources/ID              which model a source meant last
    partial/ID.data         a file that is being fetched, with ID.journal: its blocks that are safely on the disk
    locks/                  one lock for each file that is being fetched, and one for short changes of the folders

What has a name in blobs or models is whole: it was written elsewhere, brought to the disk, and renamed.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from paddock.api.base import Model
from paddock.api.fetched import SourceFile
from paddock.fetch.failures import FetchError
from paddock.fetch.locks import in_use, lease, locked, try_lock, unlock
from paddock.fetch.near import DESCRIPTION

FOLDERS: Final = ("blobs", "models", "identities", "sources", "partial", "locks")
_STAGED: Final = ".staged-"
_NO_LINKS: Final = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV)
_PIECE: Final = 1024 * 1024


class CachedModel(Model):
    """What .model.json says."""

    key: str
    """Names the content, and the folder."""
    source: str
    """Where it came from."""
    pinned: str
    """The same, with the version."""
    files: list[SourceFile]
    """All parts in order, with their digests."""

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def path(self) -> str:
        """Of the first file, relative to the cache."""
        return f"models/{self.key}/{self.files[0].name}"


@dataclass(frozen=True, slots=True)
class Shelf:
    """A cached model as it lies there."""

    model: CachedModel
    used: float
    """When it was last asked for, seconds since 1970."""
    in_use: bool
    """Whether a process of this node has it open or holds a lease."""


class Cache:
    """A cache in a folder; several processes use it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the folders; raises FetchError where that is not possible."""
        try:
            for name in FOLDERS:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_fault(error, self.folder) from None

    # reading

    def model(self, key: str) -> CachedModel | None:
        """Give a model that is here as a whole."""
        try:
            model = CachedModel.model_validate_json((self._place(key) / DESCRIPTION).read_bytes())
        except (OSError, ValidationError):
            return None
        place = self._place(key)
        whole = all(_size(place / file.name) == file.bytes for file in model.files)
        return model if whole and model.files and model.key == key else None

    def models(self) -> list[CachedModel]:
        """Give all models that are here; needs no right to write."""
        try:
            keys = sorted(one.name for one in (self.folder / "models").iterdir())
        except FileNotFoundError:
            return []
        return [model for key in keys if not key.startswith(".") and (model := self.model(key)) is not None]

    def shelves(self) -> list[Shelf]:
        """Give all models, that which was asked for the longest time ago first."""
        found = []
        for model in self.models():
            with suppress(FileNotFoundError):  # removed meanwhile
                used = (self._place(model.key) / DESCRIPTION).stat().st_mtime
                found.append(Shelf(model, used, self._busy(model)))
        return sorted(found, key=lambda shelf: (shelf.used, shelf.model.key))

    def known(self, source: str) -> CachedModel | None:
        """Give the model that a source meant when it was last looked at."""
        try:
            key = (self.folder / "sources" / short(source)).read_text().strip()
        except OSError:
            return None
        return self.model(key)

    def blob(self, identity: str) -> Path | None:
        """Give the file of a content that is here: of a digest, or of what a source calls its version."""
        if identity.startswith("sha256:"):
            path = self.blob_place(identity)
        else:
            path = self.folder / "identities" / short(identity)
        return path if path.exists() else None

    def blob_place(self, digest: str) -> Path:
        """Give where the file of a digest is, or would be."""
        return self.folder / "blobs" / digest.replace(":", "-", 1)

    @contextmanager
    def held(self, key: str) -> Iterator[CachedModel | None]:
        """Hold a lease on a model and count it as used now; None where it is not here."""
        description = self._place(key) / DESCRIPTION
        descriptor = lease(description)
        try:
            model = self.model(key) if descriptor is not None else None
            if model is not None:
                with suppress(OSError):  # a cache that was mounted read-only
                    os.utime(description)
            yield model
        finally:
            if descriptor is not None:
                os.close(descriptor)

    # writing

    def publish(self, model: CachedModel) -> None:
        """Make the model of blobs that are here, by one rename; nothing where it is here already."""
        with self._changes():
            if self.model(model.key) is not None:
                return
            place = self._place(model.key)
            staged = place.with_name(_STAGED + model.key)
            shutil.rmtree(place, ignore_errors=True)
            staged.mkdir()
            for file in model.files:
                _link(self.blob_place(file.digest or ""), staged / file.name)
            text = json.dumps(model.to_dict(), indent=1) + "\n"
            write_whole(staged / DESCRIPTION, text)
            sync_folder(staged)
            staged.rename(place)
            sync_folder(place.parent)

    def remember(self, source: str, key: str) -> None:
        """Note which model a source means now."""
        replace(self.folder / "sources" / short(source), key + "\n")

    def remember_identity(self, identity: str, digest: str) -> None:
        """Note which blob a version of a file became."""
        place = self.folder / "identities" / short(identity)
        fresh = place.with_name(f".{place.name}-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path("..") / "blobs" / self.blob_place(digest).name)
        fresh.rename(place)

    # cleaning

    def clear(self, keys: Sequence[str] | None = None) -> list[CachedModel]:
        """Remove models, all or those named, unless they are in use; gives those that were removed."""
        with self._changes():
            wanted = [one.model for one in self.shelves() if keys is None or one.model.key in keys]
            removed = [model for model in wanted if self._remove(model)]
            if keys is None:
                self._forget_partials(0, 0)
            self._sweep()
            return removed

    def clean(self, limit: int, room: int = 0) -> list[CachedModel]:
        """Remove models, the longest unused first, until the cache with `room` more bytes is within the limit.

        Those in use stay, so it may stay too large: compare `used_bytes()`.
        """
        with self._changes():
            self._sweep()
            self._forget_partials(limit, room)
            removed = []
            for shelf in self.shelves():
                if self.used_bytes() + room <= limit:
                    break
                if self._remove(shelf.model):
                    removed.append(shelf.model)
                    self._sweep()
            return removed

    def _forget_partials(self, limit: int, room: int) -> None:
        """Remove what was begun and is fetched by nobody now, until the cache is within the limit."""
        for data in (self.folder / "partial").glob("*.data"):
            if self.used_bytes() + room <= limit:
                return
            lock = self.folder / "locks" / f"{data.stem}.lock"
            descriptor = try_lock(lock)
            if descriptor is not None:
                data.with_suffix(".journal").unlink(missing_ok=True)  # first: it must never speak of other data
                data.unlink(missing_ok=True)
                unlock(lock, descriptor)

    def used_bytes(self) -> int:
        """Bytes on the disk of whole files and of those being fetched."""
        total = 0
        for folder in ("blobs", "partial"):
            with suppress(FileNotFoundError):
                for one in (self.folder / folder).iterdir():
                    with suppress(FileNotFoundError):
                        found = one.stat()
                        total += min(found.st_size, found.st_blocks * 512)
        return total

    def verify(self, model: CachedModel) -> str | None:
        """Read all files of a model again; gives what is wrong."""
        for file in model.files:
            try:
                digest = digest_of(self._place(model.key) / file.name)
            except OSError as error:
                return f"{file.name} cannot be read: {error.strerror}"
            if digest != file.digest:
                return f"{file.name} has the digest {digest}, not {file.digest}"
        return None

    def _place(self, key: str) -> Path:
        if not key.isalnum() or not key.isascii():
            raise FetchError("NotFound", "a key of the cache has letters and digits only")
        return self.folder / "models" / key

    def _busy(self, model: CachedModel) -> bool:
        place = self._place(model.key)
        return any(in_use(place / name) for name in (DESCRIPTION, *(file.name for file in model.files)))

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """Hold the lock for short changes; whatever a killed holder left is removed first."""
        with locked(self.folder / "locks" / "changes"):
            for left in (self.folder / "models").glob(f"{_STAGED}*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    def _remove(self, model: CachedModel) -> bool:
        if self._busy(model):
            return False
        place = self._place(model.key)
        staged = place.with_name(_STAGED + model.key)
        place.rename(staged)
        shutil.rmtree(staged, ignore_errors=True)
        return True

    def _sweep(self) -> None:
        """Remove blobs that no model has and nobody holds, what points to them, and files that nobody fetches."""
        needed = {file.digest for model in self.models() for file in model.files}
        for blob in (self.folder / "blobs").iterdir():
            if blob.name.replace("-", ":", 1) not in needed and not in_use(blob):
                blob.unlink(missing_ok=True)
        for link in (self.folder / "identities").iterdir():
            if not link.exists():
                link.unlink(missing_ok=True)
        for note in (self.folder / "sources").iterdir():
            with suppress(OSError):
                if self.model(note.read_text().strip()) is None:
                    note.unlink()


def _link(blob: Path, place: Path) -> None:
    try:
        os.link(blob, place)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        place.symlink_to(Path("..") / ".." / "blobs" / blob.name)


def short(text: str) -> str:
    """Give a file name for any text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_of(path: Path) -> str:
    """Read a file and give sha256:HEX; raises OSError."""
    total = hashlib.sha256()
    buffer = memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            total.update(buffer[:count])
    return "sha256:" + total.hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a small file and bring it to the disk."""
    with path.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace(path: Path, text: str) -> None:
    """Write a small file in one step: readers see the old or the new one."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    write_whole(fresh, text)
    fresh.rename(path)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_fault(error: OSError, place: Path) -> FetchError:
    """Say what an error of the cache's disk means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(place)
        return FetchError("OutOfSpace", f"the disk of the cache is full: {free} bytes are free in {place}")
    reason = error.strerror or type(error).__name__
    return FetchError("OutOfSpace", f"the cache cannot be written to: {place}: {reason}")


def free_bytes(place: Path) -> int:
    """Bytes that a user may still write there."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
